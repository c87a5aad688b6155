#include "trainer/comm/together.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/memory_store.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

// Three ranks; what each of them got, or threw.
Strings OnThree(const std::function<std::string(int rank)>& work) {
  MemoryStore store(/*timeout_s=*/60);
  Strings ends(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        for (const std::string& r : Together(store, "x", rank, 3, [&] { return work(rank); })) {
          ends[rank] += r + ";";
        }
      } catch (const CheckpointError& error) {
        ends[rank] = std::string("checkpoint: ") + error.what();
      } catch (const Error& error) {
        ends[rank] = std::to_string(static_cast<int>(error.code())) + ": " + error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return ends;
}

TEST(Together, EverybodyGetsAllResults) {
  EXPECT_EQ(OnThree([](int rank) { return std::string(rank, '-'); }), Strings(3, ";-;--;"));
}

TEST(Together, OneRanksFailureIsEverybodysOfItsKind) {
  const auto fail = [](auto error) {
    return OnThree([error](int rank) -> std::string {
      if (rank >= 1) throw error;
      return "done";
    });
  };
  EXPECT_EQ(fail(CheckpointError("no space")), Strings(3, "checkpoint: rank 1: no space"));
  EXPECT_EQ(fail(Error(ExitCode::kNotFinite, "nan")), Strings(3, "7: rank 1: nan"));
  EXPECT_EQ(fail(std::runtime_error("odd")), Strings(3, "1: rank 1: odd"));
}

}  // namespace
}  // namespace fsdp
