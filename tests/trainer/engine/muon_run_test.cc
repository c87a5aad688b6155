// Runs with Muon: which settings change no bit, how far the others may, and what travels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "models/shape.h"
#include "tests/testing/tiny_run.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/matrix_layout.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/optim/muon.h"

namespace fsdp::testing {
namespace {

TinyRun MuonRun(int world, bool llama = false) {
  TinyRun run;
  run.world = world;
  if (llama) run.llama = TinyRun::TinyLlama();
  run.options.optimizer.kind = OptimizerKind::kMuon;
  run.options.optimizer.momentum = 0;
  run.options.executor.whole = WholeRuleOf(run.options.optimizer);
  run.options.lr.lr = 0.01;
  return run;
}

TEST(MuonRun, SettingsThatChangeNoBit) {
  for (const bool llama : {false, true}) {
    TinyRun run = MuonRun(3, llama);
    if (llama) run.options.optimizer.muon.row_beta2 = 0.9;
    ExecutorOptions& o = run.options.executor;
    const TinyResult plain = Train(run);
    o.sharding_strategy = Strategy::kShardGradOp;
    EXPECT_EQ(FirstDifference(Train(run), plain), "");
    o.sharding_strategy = Strategy::kFullShard;
    o.communicators = 2;
    o.limit_all_gathers = 1;
    o.recompute = Recompute::kFull;
    EXPECT_EQ(FirstDifference(Train(run), plain), "");
    o.limiter = FsdpOptions::Limiter::kHost;
    o.buffers = FsdpOptions::Buffers::kCaching;
    EXPECT_EQ(FirstDifference(Train(run), plain), "");
    run.ranks = RunProcessRanks;
    EXPECT_EQ(FirstDifference(Train(run), plain), "");
  }
}

TEST(MuonRun, AllWorldsAgreeWithOneRank) {
  TinyRun run = MuonRun(1);
  run.options.executor.micro_batch_size = 1;
  run.options.optimizer.ema = 0.5;
  const TinyResult one = Train(run);
  EXPECT_LT(one.losses.back(), one.losses.front());
  const auto expect_near = [&] {
    const TinyResult other = Train(run);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], one.losses[i], 2e-4) << run.world;
    }
    for (const auto& [name, values] : one.parameters) {
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(other.parameters.at(name)[i], values[i], 2e-3) << name << " " << run.world;
      }
    }
    EXPECT_EQ(other.state.size(), one.state.size());
  };
  for (run.world = 2; run.world <= 4; ++run.world) expect_near();
  run.world = 2;
  run.options.executor.gradient_accumulation = Accumulation::kUnsharded;
  expect_near();
  run.options.executor.sharding_strategy = Strategy::kNoShard;
  expect_near();
  run.world = 4;
  run.options.executor.sharding_strategy = Strategy::kHybridShard;
  run.options.executor.shard_size = 2;
  expect_near();
}

// Steps that overflow move neither masters nor momentum; narrow masters and state are rounded.
TEST(MuonRun, NarrowFormats) {
  for (const DType param : {DType::kFloat16, DType::kBFloat16}) {
    TinyRun run = MuonRun(2);
    ExecutorOptions& o = run.options.executor;
    o.mixed_precision.param_dtype = param;
    run.options.optimizer.muon.row_beta2 = 0.9;
    if (param == DType::kFloat16) {
      o.mixed_precision.scaler = {.init_scale = 0x1p24, .growth_interval = 100};
    } else {
      o.mixed_precision.master_dtype = o.state_dtype = DType::kBFloat16;
      o.mixed_precision.keep_fp32 = {"*ln_*"};
    }
    run.steps = 12;
    const TinyResult result = Train(run);
    const auto skipped =
        std::ranges::count_if(result.grad_norms, [](float x) { return !std::isfinite(x); });
    EXPECT_EQ(skipped > 0, param == DType::kFloat16);
    EXPECT_LT(skipped, run.steps - 2);
    for (const auto& [name, values] : result.parameters) {
      EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) << name;
    }
    EXPECT_LT(result.losses.back(), result.losses.front());
  }
}

// The loss of 20 steps, to a fiftieth of a nat.
TEST(MuonRun, LearnsWithMomentumInCodes) {
  TinyRun run = MuonRun(2);
  run.config.hidden_size = 48;
  run.config.intermediate_size = 104;
  run.steps = 20;
  const TinyResult want = Train(run);
  run.options.executor.state_dtype = DType::kUInt8;
  const TinyResult got = Train(run);
  EXPECT_NE(got.losses, want.losses);
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(got.losses[i], want.losses[i], 0.02) << i;
}

// At most 2 N / F elements a step on average, N being those of all matrices.
TEST(MuonRun, RanksSendWhatTheLayoutSays) {
  for (const auto& [world, strategy] : {std::pair(1, Strategy::kFullShard),
                                        {2, Strategy::kFullShard},
                                        {3, Strategy::kNoShard},
                                        {4, Strategy::kHybridShard}}) {
    TinyRun run = MuonRun(world);
    ExecutorOptions& o = run.options.executor;
    o.sharding_strategy = strategy;
    if (IsHybrid(strategy)) o.shard_size = 2;
    std::vector<int64_t> sent(world);
    run.on_traffic = [&](int rank, int64_t step, const TrafficBytes& bytes) {
      if (step == 2) sent[rank] = bytes.of(Collective::kAllToAll);
    };
    Train(run);
    const auto model = MakeModel(run.shape());
    const int shards = MeshFor(o, 0, world).shard_size();
    const Layout flats = LayoutFor(o, *model, shards);
    const MatrixLayout layout(*model, flats, world);
    std::vector<int64_t> want(world);
    for (int u = 0; u < static_cast<int>(flats.units.size()); ++u) {
      for (int r = 0; r < world; ++r) {
        want[r] += 4 * (layout.ToOwners(u).ToOthers(r) + layout.FromOwners(u).ToOthers(r));
      }
    }
    EXPECT_EQ(sent, want) << world;
    StepTraffic planned;
    PlanMemory(*model, run.options, world, &planned);
    EXPECT_EQ(planned.all_to_all_bytes, want[0]) << world;
    int64_t elements = 0;
    for (const WholeMatrix& matrix : layout.matrices()) elements += matrix.size();
    const int64_t all = std::accumulate(want.begin(), want.end(), int64_t{0});
    EXPECT_LE(all, 4 * 2 * elements * world / shards) << world;
  }
}

}  // namespace
}  // namespace fsdp::testing
