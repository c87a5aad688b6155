#include "trainer/bench/comm_bench.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdp {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

class CommBenchTest : public ::testing::TestWithParam<CommBenchOptions::Transport> {};

TEST_P(CommBenchTest, MeasuresEveryCollectiveAtEverySize) {
  for (int i = 0; i < 9; ++i) {
    const int ranks = 1 + i / 3;
    const CommBenchOptions options{.transport = GetParam(),
                                   .ranks = ranks,
                                   .dtype = kDTypes[i % 3],
                                   .sizes = {14, 4096},
                                   .max_calls = 3,
                                   .batches = 2};
    const int64_t part = SizeOf(options.dtype) * ranks;
    int rounds = 2, done = 0;
    MeasureCollectives(
        options, [&] { return rounds-- > 0; },
        [&](const std::vector<CommTime>& times) {
          ++done;
          ASSERT_EQ(times.size(), 2u * kCollectives);
          for (size_t i = 0; i < times.size(); ++i) {
            const int64_t asked = options.sizes[i / kCollectives];
            EXPECT_EQ(times[i].bytes, asked / part * part);
            EXPECT_EQ(times[i].collective, static_cast<Collective>(i % kCollectives));
            EXPECT_GT(times[i].seconds, 0);
            EXPECT_GT(times[i].memcpy_seconds, 0);
          }
        });
    EXPECT_EQ(done, 2);
  }
}

TEST_P(CommBenchTest, EndsOnEveryRankWhereTheAskerThrows) {
  const CommBenchOptions options{
      .transport = GetParam(), .ranks = 2, .sizes = {64}, .max_calls = 3, .batches = 1};
  EXPECT_THROW(MeasureCollectives(
                   options, [] { return true; },
                   [](const std::vector<CommTime>&) { throw std::runtime_error("enough"); }),
               std::runtime_error);
}

TEST_P(CommBenchTest, ARankHasAtLeastOneElement) {
  CommBenchOptions options{
      .transport = GetParam(), .ranks = 4, .sizes = {15}, .max_calls = 3, .batches = 1};
  const auto never = [] { return false; };
  EXPECT_THROW(MeasureCollectives(options, never, nullptr), std::invalid_argument);
  options.dtype = DType::kBFloat16;
  EXPECT_NO_THROW(MeasureCollectives(options, never, nullptr));
  options.sizes = {7};
  EXPECT_THROW(MeasureCollectives(options, never, nullptr), std::invalid_argument);
  options.sizes = {};
  EXPECT_THROW(MeasureCollectives(options, never, nullptr), std::invalid_argument);
}

TEST_P(CommBenchTest, WhatNothingAddsUpIsRefused) {
  const CommBenchOptions options{.transport = GetParam(), .dtype = DType::kInt32};
  EXPECT_THROW(MeasureCollectives(
                   options, [] { return false; }, nullptr),
               std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(EveryTransport, CommBenchTest,
                         ::testing::Values(CommBenchOptions::Transport::kThread,
                                           CommBenchOptions::Transport::kShm),
                         [](const auto& info) {
                           return info.param == CommBenchOptions::Transport::kShm ? "Shm"
                                                                                  : "Thread";
                         });

}  // namespace
}  // namespace fsdp
