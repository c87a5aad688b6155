// Where this build's sanitizer misses the mistake planted in a room, it misses all mistakes there.
#include "tests/sanitizers/planted_mistakes.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstdlib>
#include <memory>
#include <thread>

namespace fsdp::sanitizers {
namespace {

// Rooms and families, by tests/sanitizers/BUILD.bazel.
TEST(PlantedMistakesTest, AreInEveryRoom) { EXPECT_EQ(AllPlanted().size(), size_t{FSDP_ROOMS}); }

#if defined(__SANITIZE_ADDRESS__)

TEST(PlantedMistakesTest, AddressSanitizerSeesThem) {
  for (const auto& [room, mistakes] : AllPlanted()) {
    SCOPED_TRACE(room);
    const auto one = std::make_unique<int>(0);
    EXPECT_DEATH(mistakes.read_behind(one.get()), "heap-buffer-overflow");
  }
}

TEST(PlantedMistakesTest, UndefinedBehaviorSanitizerSeesThem) {
  for (const auto& [room, mistakes] : AllPlanted()) {
    SCOPED_TRACE(room);
    const int largest = INT_MAX;
    EXPECT_DEATH(mistakes.add_to_largest(&largest), "signed integer overflow");
  }
}

#elif defined(__SANITIZE_THREAD__)

void Race(const Mistakes& mistakes) {
  int shared = 0;
  std::thread other([&] { mistakes.increment(&shared); });
  mistakes.increment(&shared);
  other.join();
  std::exit(0);  // Where ThreadSanitizer says what it has seen, by its exit status.
}

TEST(PlantedMistakesTest, ThreadSanitizerSeesThem) {
  for (const auto& [room, mistakes] : AllPlanted()) {
    SCOPED_TRACE(room);
    EXPECT_EXIT(Race(mistakes), ::testing::ExitedWithCode(66), "data race");
  }
}

#endif

}  // namespace
}  // namespace fsdp::sanitizers
