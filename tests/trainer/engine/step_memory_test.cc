// The memory in use over a step, against its plan.
#include "trainer/engine/step_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "models/shape.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/engine/settings.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/optim/muon.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp::testing {
namespace {

struct Followed {
  MemoryPlan plan;
  std::vector<MemoryPoint> points;

  int64_t most() const { return std::max_element(points.begin(), points.end(), Lower)->allocated; }
  int64_t least() const { return std::min_element(points.begin(), points.end(), Lower)->allocated; }
  // Bytes that live as long as the run, but for those that units have while they are in use.
  int64_t always() const {
    int64_t bytes = 0;
    for (const MemoryPlan::Block& block : plan.blocks[static_cast<int>(Phase::kPersistent)]) {
      const bool counts =
          block.use.kind != MemoryKind::kUnsharded && block.use.place != MemoryPlace::kDisk;
      if (counts) bytes += AlignedBytes(block.bytes, block.use);
    }
    return bytes;
  }

 private:
  static bool Lower(const MemoryPoint& a, const MemoryPoint& b) {
    return a.allocated < b.allocated;
  }
};

// The third training step of a run, where kernels and collectives take times of one size.
Followed Follow(const TinyRun& run) {
  const auto model = MakeModel(run.shape());
  Followed followed{PlanMemory(*model, run.options, run.world), {}};
  SimDevice device({.s_per_flop = 1e-9,
                    .s_per_byte = 1e-9,
                    .s_per_link_byte = 1e-9,
                    .s_per_link_message = 1e-6,
                    .s_per_enqueue = 1e-8});
  PlanRecorder memory;
  const MeshCommunicators communicators(MeshFor(run.options.executor, /*rank=*/0, run.world),
                                        run.options.executor.communicators, ConnectSim);
  Session session(device, memory, *model, run.options, communicators);
  const auto no_load = [](int, const Batch&) {};
  for (int step = 1; step <= 3; ++step) {
    if (step == 3) device.StartTrace();
    session.Train(step, session.FullTargets(), /*save=*/false, no_load);
  }
  session.executor().Synchronize();
  const StepMemory in_use(*model, run.options, run.world, DeviceType::kCpu);
  followed.points = in_use.Over(device.TakeTrace(), followed.plan.bytes());
  return followed;
}

TEST(StepMemory, PeaksAtThePlanWhereAllOfItIsInUse) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const int micro_batches : {1, 3}) {
      TinyRun run;
      run.options.eval = false;
      run.options.executor.recompute = recompute;
      run.options.executor.micro_batches = micro_batches;
      const Followed one = Follow(run);
      EXPECT_EQ(one.most(), one.plan.bytes()) << Describe(run);
      EXPECT_EQ(one.least(), one.always()) << Describe(run);
      EXPECT_EQ(one.points.back().allocated, one.always()) << Describe(run);
    }
  }
}

// Two slots are both in use while one unit computes and the next one is gathered.
TEST(StepMemory, ASlotIsInUseFromGatherToFree) {
  TinyRun run;
  run.world = 2;
  run.options.eval = false;
  const auto model = MakeModel(run.shape());
  const Layout layout = LayoutFor(run.options.executor, *model, run.world);
  ASSERT_EQ(layout.units.size(), 4u);  // A root and three equal blocks.
  ASSERT_EQ(layout.GatheredBytes(1), layout.GatheredBytes(3));
  run.options.executor.limit_all_gathers = 1;
  const Followed one = Follow(run);
  run.options.executor.limit_all_gathers = 2;
  const Followed two = Follow(run);
  EXPECT_EQ(two.plan.bytes() - one.plan.bytes(), layout.GatheredBytes(1));
  EXPECT_EQ(two.most() - one.most(), layout.GatheredBytes(1));
  // The root stays gathered; all that blocks have taken is given back.
  EXPECT_EQ(one.points.back().allocated, one.always() + layout.GatheredBytes(0));
  EXPECT_EQ(two.points.back().allocated, two.always() + layout.GatheredBytes(0));
}

// Where one takes more than the other, the plan has no byte for the other.
TEST(StepMemory, UpdatesWorkWhereActivationsWere) {
  for (const OptimizerKind kind : {OptimizerKind::kMuon, OptimizerKind::kAdafactor}) {
    const auto follow = [&](bool updates, int64_t samples) {
      TinyRun run;
      run.options.eval = false;
      run.options.executor.micro_batch_size = samples;
      if (updates) {
        run.options.optimizer.kind = kind;
        run.options.optimizer.momentum = 0;
        run.options.executor.whole = WholeRuleOf(run.options.optimizer);
        run.options.executor.factored = kind == OptimizerKind::kAdafactor;
      }
      return Follow(run);
    };
    const auto activations = [](const Followed& run) {
      return run.plan.bytes(MemoryKind::kActivations, MemoryPlace::kDevice);
    };
    const Followed few = follow(true, 1), many = follow(true, 64);
    for (const Followed& run : {few, many}) {
      EXPECT_EQ(run.most(), run.plan.bytes());
      EXPECT_EQ(run.points.back().allocated, run.always());
    }
    const int64_t gates = kind == OptimizerKind::kMuon ? 64 : 0;
    EXPECT_EQ(activations(many), activations(follow(false, 64)) + gates);
    if (gates > 0) {
      EXPECT_GT(activations(few), activations(follow(false, 1)) + gates);
    }
  }
}

TEST(StepMemory, IsNeverAboveThePlan) {
  int runs = 0;
  for (TinyRun run : PairwiseRuns(/*apart=*/2)) {
    run.options.executor.micro_batch_size = 1;
    run.options.executor.micro_batches = 2;
    const Followed one = Follow(run);
    EXPECT_LE(one.most(), one.plan.bytes()) << Describe(run);
    EXPECT_GE(one.least(), one.always()) << Describe(run);
    EXPECT_GT(one.most(), one.least()) << Describe(run);
    for (const MemoryPoint& point : one.points) EXPECT_EQ(point.reserved, one.plan.bytes());
    for (size_t i = 1; i < one.points.size(); ++i) {
      EXPECT_GT(one.points[i].at_s, one.points[i - 1].at_s) << Describe(run);
    }
    ++runs;
  }
  EXPECT_GT(runs, 10);
}

TEST(StepMemory, HasNoPointsWithoutAStep) {
  const TinyRun run;
  const auto model = MakeModel(run.shape());
  const StepMemory in_use(*model, run.options, run.world, DeviceType::kCpu);
  EXPECT_TRUE(in_use.Over({}, 1).empty());
  const std::vector<Span> waits = {{"wait", "compute", 0, 1, /*tag=*/0, 0}};
  EXPECT_TRUE(in_use.Over(waits, 1).empty());
}

}  // namespace
}  // namespace fsdp::testing
