#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

TEST(ReadAhead, EachBlockIsUsedAsItWasRead) {
  for (const int64_t size : {0, 1, 6, 7, 8, 20, 21}) {
    std::array<std::vector<int64_t>, 2> buffers;
    std::vector<int64_t> got, want;
    for (int64_t i = 0; i < size; ++i) want.push_back(i);
    ReadAhead(
        size, 7,
        [&](int buffer, int64_t begin, int64_t count) {
          buffers[buffer].clear();
          for (int64_t i = 0; i < count; ++i) buffers[buffer].push_back(begin + i);
        },
        [&](int buffer, int64_t begin, int64_t count) {
          EXPECT_EQ(begin, static_cast<int64_t>(got.size()));
          EXPECT_EQ(count, static_cast<int64_t>(buffers[buffer].size()));
          got.insert(got.end(), buffers[buffer].begin(), buffers[buffer].end());
        });
    EXPECT_EQ(got, want);
  }
}

// Each block but the first is read before the one ahead of it has been used: else neither goes on.
TEST(ReadAhead, ReadsWhileItUses) {
  std::array<std::latch, 3> read = {std::latch(1), std::latch(1), std::latch(1)};
  const std::thread::id caller = std::this_thread::get_id();
  ReadAhead(
      3, 1,
      [&](int, int64_t begin, int64_t) {
        EXPECT_EQ(std::this_thread::get_id() == caller, begin == 0);
        read[begin].count_down();
      },
      [&](int, int64_t begin, int64_t) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        if (begin + 1 < 3) read[begin + 1].wait();
      });
}

TEST(ReadAhead, ThrowsWhatEitherThrows) {
  const auto run = [](int64_t bad_read, int64_t bad_use) {
    std::string calls;
    const auto step = [&calls](const char* name, int64_t bad) {
      return [&calls, name, bad](int, int64_t begin, int64_t) {
        if (begin == bad) throw std::runtime_error(name);
        if (*name == 'u') calls += std::to_string(begin);
      };
    };
    try {
      ReadAhead(5, 1, step("read", bad_read), step("use", bad_use));
    } catch (const std::runtime_error& error) {
      calls += error.what();
    }
    return calls;
  };
  EXPECT_EQ(run(-1, -1), "01234");
  EXPECT_EQ(run(0, -1), "read");
  EXPECT_EQ(run(3, -1), "012read");
  EXPECT_EQ(run(-1, 2), "01use");
  EXPECT_EQ(run(3, 2), "01use");
}

}  // namespace
}  // namespace fsdp
