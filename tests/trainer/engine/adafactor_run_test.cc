// Runs with Adafactor: which settings change no bit, how far the others may, and what it keeps and
// sends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "models/shape.h"
#include "tests/testing/tiny_run.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/factor_layout.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/optim/muon.h"

namespace fsdp::testing {
namespace {

TinyRun AdafactorRun(int world, bool llama = false) {
  TinyRun run;
  run.world = world;
  if (llama) run.llama = TinyRun::TinyLlama();
  run.options.optimizer.kind = OptimizerKind::kAdafactor;
  run.options.optimizer.momentum = 0;
  run.options.executor.whole = WholeRuleOf(run.options.optimizer);
  run.options.executor.factored = true;
  run.options.lr.lr = 0.05;
  return run;
}

TEST(AdafactorRun, SettingsThatChangeNoBit) {
  for (const bool llama : {false, true}) {
    TinyRun run = AdafactorRun(3, llama);
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
  }
}

TEST(AdafactorRun, AllWorldsAgreeWithOneRank) {
  TinyRun run = AdafactorRun(1);
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
  for (const int world : {2, 3, 5}) {
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

// Steps that overflow move neither masters nor moments; narrow masters are rounded.
TEST(AdafactorRun, NarrowFormats) {
  for (const DType param : {DType::kFloat16, DType::kBFloat16}) {
    TinyRun run = AdafactorRun(2);
    ExecutorOptions& o = run.options.executor;
    o.mixed_precision.param_dtype = param;
    if (param == DType::kFloat16) {
      o.mixed_precision.scaler = {.init_scale = 0x1p24, .growth_interval = 100};
    } else {
      o.mixed_precision.master_dtype = DType::kBFloat16;
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
