// Runs with Muon and Adafactor, which look beyond an element: which settings change no bit, how far
// the others may, what they keep and what travels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "models/shape.h"
#include "tests/testing/tiny_run.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/factor_layout.h"
#include "trainer/fsdp/matrix_layout.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/optim/muon.h"

namespace fsdp::testing {
namespace {

// `part`: elements; a disk's blocks are 4 KiB.
void SpillInParts(ExecutorOptions& o, int64_t part) {
  o.spill_part = part;
  o.cpu_offload.optimizer = true;
  o.cpu_offload.spill = ::testing::TempDir();
}

// On the ranks of `run`, threads and then processes.
void ExpectSettingsChangeNoBit(TinyRun run) {
  ExecutorOptions& o = run.options.executor;
  const TinyResult plain = Train(run);
  o.sharding_strategy = Strategy::kShardGradOp;
  EXPECT_EQ(FirstDifference(Train(run), plain), "");
  o.sharding_strategy = Strategy::kFullShard;
  o.communicators = 2;
  o.limit_all_gathers = 1;
  o.recompute = Recompute::kFull;
  EXPECT_EQ(FirstDifference(Train(run), plain), "");
  o.cpu_offload.optimizer = true;
  EXPECT_EQ(FirstDifference(Train(run), plain), "") << "on the host";
  o.cpu_offload.params = true;
  EXPECT_EQ(FirstDifference(Train(run), plain), "") << "fetched";
  for (const bool params : {true, false}) {
    if (o.factored) break;
    o.cpu_offload.params = params;
    SpillInParts(o, 1024);
    o.cpu_offload.spill_ahead = params ? 0 : 2;
    EXPECT_EQ(FirstDifference(Train(run), plain), "") << "on a disk, fetched " << params;
  }
  o.cpu_offload = {};
  o.limiter = FsdpOptions::Limiter::kHost;
  o.buffers = FsdpOptions::Buffers::kCaching;
  EXPECT_EQ(FirstDifference(Train(run), plain), "");
  run.ranks = RunProcessRanks;
  EXPECT_EQ(FirstDifference(Train(run), plain), "");
}

// `run`: of one rank, and six samples.
void ExpectWorldsAgreeWithOneRank(TinyRun run) {
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
  for (const int world : {2, 3, 4, 5}) {
    run.world = world;
    expect_near();
  }
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

// Steps that overflow move neither masters nor state; narrow masters, and state where it may be
// narrow, are rounded.
void ExpectNarrowFormatsLearn(TinyRun run, DType state_dtype) {
  const ExecutorOptions wide = run.options.executor;
  run.steps = 12;
  for (const DType param : {DType::kFloat16, DType::kBFloat16}) {
    ExecutorOptions& o = run.options.executor = wide;
    o.mixed_precision.param_dtype = param;
    if (param == DType::kFloat16) {
      o.mixed_precision.scaler = {.init_scale = 0x1p24, .growth_interval = 100};
    } else {
      o.mixed_precision.master_dtype = DType::kBFloat16;
      o.state_dtype = state_dtype;
      o.mixed_precision.keep_fp32 = {"*ln_*"};
    }
    const TinyResult result = Train(run);
    const auto skipped =
        std::ranges::count_if(result.grad_norms, [](float x) { return !std::isfinite(x); });
    EXPECT_EQ(skipped > 0, param == DType::kFloat16);
    EXPECT_LT(skipped, run.steps - 2);
    for (const auto& [name, values] : result.parameters) {
      EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) << name;
    }
    EXPECT_LT(result.losses.back(), result.losses.front());
    o.cpu_offload.optimizer = true;
    EXPECT_EQ(FirstDifference(Train(run), result), "") << "on the host";
    if (o.factored) continue;
    SpillInParts(o, 2048);
    EXPECT_EQ(FirstDifference(Train(run), result), "") << "on a disk";
  }
}

TinyRun RunOf(OptimizerKind kind, float lr, int world, bool llama) {
  TinyRun run;
  run.world = world;
  if (llama) run.llama = TinyRun::TinyLlama();
  run.options.optimizer.kind = kind;
  run.options.optimizer.momentum = 0;
  run.options.executor.whole = WholeRuleOf(run.options.optimizer);
  run.options.executor.factored = kind == OptimizerKind::kAdafactor;
  run.options.lr.lr = lr;
  return run;
}
TinyRun MuonRun(int world, bool llama = false) {
  return RunOf(OptimizerKind::kMuon, 0.01, world, llama);
}
TinyRun AdafactorRun(int world, bool llama = false) {
  return RunOf(OptimizerKind::kAdafactor, 0.05, world, llama);
}

TEST(MuonRun, SettingsThatChangeNoBit) {
  for (const bool llama : {false, true}) {
    TinyRun run = MuonRun(3, llama);
    if (llama) run.options.optimizer.muon.row_beta2 = 0.9;
    ExpectSettingsChangeNoBit(run);
  }
}

TEST(MuonRun, AllWorldsAgreeWithOneRank) { ExpectWorldsAgreeWithOneRank(MuonRun(1)); }

TEST(MuonRun, NarrowFormats) {
  TinyRun run = MuonRun(2);
  run.options.optimizer.muon.row_beta2 = 0.9;
  ExpectNarrowFormatsLearn(run, DType::kBFloat16);
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
  SpillInParts(run.options.executor, 4096);
  EXPECT_EQ(FirstDifference(Train(run), got), "");
}

// Momentum when pieces are made of it, masters and averages at the update; where parameters are
// fetched, they are the masters, in memory.
TEST(MuonRun, AByteOnADiskIsReadAndWrittenOnce) {
  for (const bool params : {false, true}) {
    TinyRun run = MuonRun(2);
    ExecutorOptions& o = run.options.executor;
    run.options.optimizer.ema = 0.9;
    o.cpu_offload = {.params = params, .optimizer = true};
    const TinyResult in_memory = Train(run);
    SpillInParts(o, 1024);
    EXPECT_EQ(FirstDifference(Train(run), in_memory), "") << params;
    const auto model = MakeModel(run.shape());
    int64_t bytes = 0;
    for (const FlatParameter& flat : LayoutFor(o, *model, run.world).flat_parameters) {
      bytes += 4 * flat.shard_size * ((params ? 0 : 1) + (flat.dtypes.whole ? 1 : 2) + 1);
    }
    StepTraffic planned;
    PlanMemory(*model, run.options, run.world, &planned);
    EXPECT_EQ(planned.spill_read_bytes, bytes) << params;
    EXPECT_EQ(planned.spill_write_bytes, bytes) << params;
  }
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

TEST(AdafactorRun, SettingsThatChangeNoBit) {
  for (const bool llama : {false, true}) ExpectSettingsChangeNoBit(AdafactorRun(3, llama));
}

TEST(AdafactorRun, AllWorldsAgreeWithOneRank) { ExpectWorldsAgreeWithOneRank(AdafactorRun(1)); }

TEST(AdafactorRun, NarrowFormats) { ExpectNarrowFormatsLearn(AdafactorRun(2), DType::kFloat32); }

TEST(AdafactorRun, FrozenPartsHaveNoState) {
  TinyRun run = AdafactorRun(2);
  run.options.optimizer.groups = {ParameterGroup{"*.h.0.*", {}, 1, true}};
  const TinyResult result = Train(run);
  EXPECT_LT(result.losses.back(), result.losses.front());
  for (const auto& [name, values] : result.state) {
    EXPECT_EQ(name.find(".h.0."), std::string::npos) << name;
  }
}

// Two sums a step, of all units at once; and a value for each row and column, on every rank.
TEST(AdafactorRun, RanksKeepAndSendWhatTheLayoutSays) {
  for (const int world : {1, 2, 3}) {
    TinyRun run = AdafactorRun(world);
    ExecutorOptions& o = run.options.executor;
    const auto model = MakeModel(run.shape());
    const Layout layout = LayoutFor(o, *model, world);
    const FactorLayout factors(*model, layout);
    const auto planned = [&](const TinyRun& of, StepTraffic& traffic) {
      return PlanMemory(*model, of.options, world, &traffic);
    };
    StepTraffic with, without;
    const MemoryPlan plan = planned(run, with);
    int64_t vectors = 0;
    for (const FlatParameter& flat : layout.flat_parameters) {
      if (!flat.dtypes.whole) vectors += 4 * flat.shard_size;
    }
    const int64_t state = 4 * factors.values() + vectors;
    EXPECT_NEAR(plan.bytes(MemoryKind::kOptimizer), state, 16384);  // Tables of rules.
    TinyRun sgd = run;
    sgd.options.optimizer.kind = OptimizerKind::kSgd;
    sgd.options.executor.factored = false;
    sgd.options.executor.whole = nullptr;
    planned(sgd, without);
    const auto values = static_cast<double>(factors.FirstSum() + factors.SecondSum());
    EXPECT_NEAR(static_cast<double>(with.all_reduce_bytes - without.all_reduce_bytes),
                4 * values * 2 * (world - 1) / world, 32);
    std::vector<int64_t> sent(world);
    run.on_traffic = [&](int rank, int64_t step, const TrafficBytes& bytes) {
      if (step == 2) sent[rank] = bytes.of(Collective::kAllReduce);
    };
    Train(run);
    EXPECT_EQ(sent[0], with.all_reduce_bytes) << world;
  }
}

}  // namespace
}  // namespace fsdp::testing
