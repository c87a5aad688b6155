// Runs whose optimizer state is codes (ops/state_codes.h).
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/engine/settings.h"

namespace fsdp::testing {
namespace {

// Three blocks of 2 coded matrices, a coded token table, and tensors that stay fp32.
TinyRun CodedRun(int world) {
  TinyRun run;
  run.world = world;
  run.config.hidden_size = 48;
  run.config.intermediate_size = 104;
  run.options.optimizer = OptimizerOptions();  // AdamW.
  run.options.executor.state_dtype = DType::kUInt8;
  run.options.executor.spill_part = 4096;
  run.options.lr.lr = 0.01;
  return run;
}

// Neither where state lies, nor when it is updated, nor what else is made of masters.
TEST(CodedState, SettingsChangeNoBit) {
  for (const int world : {1, 2, 3}) {
    if (!AllCases() && world != 1 + static_cast<int>(Part(3))) continue;
    TinyRun run = CodedRun(world);
    const TinyResult want = Train(run);
    ASSERT_EQ(want.state.count("m_absmax/transformer.wte.weight"), 0u);
    for (const FsdpOptions::CpuOffload& offload : Offloads()) {
      run.options.executor.cpu_offload = offload;
      EXPECT_EQ(FirstDifference(Train(run), want), "") << Describe(run);
    }
    run = CodedRun(world);
    run.options.executor.sharding_strategy = Strategy::kShardGradOp;
    EXPECT_EQ(FirstDifference(Train(run), want), "") << Describe(run);
    run = CodedRun(world);
    run.options.executor.buffers = FsdpOptions::Buffers::kCaching;
    run.options.executor.limiter = FsdpOptions::Limiter::kHost;
    EXPECT_EQ(FirstDifference(Train(run), want), "") << Describe(run);
    run = CodedRun(world);
    run.options.optimizer.ema = 0.9;
    TinyResult averaged = Train(run);
    std::erase_if(averaged.state, [](const auto& of) { return of.first.starts_with("ema/"); });
    EXPECT_EQ(FirstDifference(averaged, want), "") << Describe(run);
  }
}

// bf16 masters, copies of fp16 under a loss scaler, hybrid sharding and no sharding: the same bits
// with updates on the host.
TEST(CodedState, EveryPrecisionAndStrategyUpdatesOnTheHost) {
  for (const FsdpOptions::MixedPrecision& precision : Precisions()) {
    TinyRun run = CodedRun(2);
    run.options.executor.mixed_precision = precision;
    const TinyResult want = Train(run);
    run.options.executor.cpu_offload = {.optimizer = true, .spill = ::testing::TempDir()};
    EXPECT_EQ(FirstDifference(Train(run), want), "") << Describe(run);
  }
  for (const auto& [strategy, shard_size] :
       {std::pair(Strategy::kHybridShard, 2), std::pair(Strategy::kNoShard, 1)}) {
    TinyRun run = CodedRun(4);
    run.options.executor.sharding_strategy = strategy;
    run.options.executor.shard_size = shard_size;
    const TinyResult want = Train(run);
    run.options.executor.cpu_offload = {.optimizer = true};
    EXPECT_EQ(FirstDifference(Train(run), want), "") << Describe(run);
  }
}

// The loss of 20 steps, to a fiftieth of a nat.
TEST(CodedState, LearnsAsFp32Does) {
  TinyRun run = CodedRun(2);
  run.steps = 20;
  const TinyResult got = Train(run);
  run.options.executor.state_dtype = DType::kFloat32;
  const TinyResult want = Train(run);
  EXPECT_NE(got.losses, want.losses);
  EXPECT_LT(want.losses.back(), want.losses.front());
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(got.losses[i], want.losses[i], 0.02) << i;
}

}  // namespace
}  // namespace fsdp::testing
