// Bytes that a rank gives to others in a step, as transports count them, against what was planned
// and what the paper's strategies say: sections 3.2 and 3.3 of arXiv 2304.11277, written out here.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/shape.h"
#include "tests/testing/tiny_run.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/model_layout.h"

namespace fsdp::testing {
namespace {

// Elements of a rank: each other one adds up a slice of its n and then takes the slice that this
// one has added up.
int64_t AllReduced(int64_t n, int rank, int size) {
  const int64_t slice = n * (rank + 1) / size - n * rank / size;
  return n - slice + (size - 1) * slice;
}

struct Want {
  int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0;
};

struct Setting {
  Strategy strategy;
  int world, shards, k = 1;
};

// The bytes of the rank at position `rank`; units[0] is the root. Elements of units are a multiple
// of 256 F, so each division but an all-reduce's is exact.
Want WantOf(const TinyRun& run, const Setting& s, int micro_batches, int rank, bool train) {
  const auto model = MakeModel(run.shape());
  const Layout layout = MakeLayout(ShapesOf(*model, {}), {}, s.shards);
  const int64_t compute =
      run.options.executor.mixed_precision.param_dtype == DType::kFloat32 ? 4 : 2;
  const bool full = s.strategy == Strategy::kFullShard || s.strategy == Strategy::kHybridShard;
  const int reductions =
      run.options.executor.gradient_accumulation == Accumulation::kSharded ? micro_batches : 1;
  const int replicas = s.world / s.shards, replicate_rank = rank / s.shards;
  Want want;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    for (const int f : layout.units[u].flat_parameters) {
      const int64_t n = layout.flat_parameters[f].size, shard = n / s.shards;
      const bool again = full && u > 0;  // Freed after forward: the root is not.
      const int64_t over_f = (s.shards - 1) * shard * compute,
                    over_k = (s.k - 1) * (n / s.k) * compute;
      if (s.shards > 1 && !train) want.all_gather += over_f;
      if (s.shards > 1 && train && !again) want.all_gather += over_f;
      if (s.shards > 1 && train && again) {
        want.all_gather += micro_batches * (over_f + (s.k > 1 ? over_k : over_f));
      }
      if (!train) continue;
      want.reduce_scatter += reductions * (s.shards - 1) * shard * 4;
      if (replicas > 1) want.all_reduce += AllReduced(shard, replicate_rank, replicas) * 4;
    }
  }
  want.all_reduce += AllReduced(3, rank, s.world) * 4;  // The step's scalars.
  return want;
}

void ExpectTraffic(const TrafficBytes& got, const Want& want, const std::string& what) {
  EXPECT_EQ(got.of(Collective::kAllGather), want.all_gather) << what;
  EXPECT_EQ(got.of(Collective::kReduceScatter), want.reduce_scatter) << what;
  EXPECT_EQ(got.of(Collective::kAllReduce), want.all_reduce) << what;
  EXPECT_EQ(got.of(Collective::kAllToAll), 0) << what;
  EXPECT_EQ(got.of(Collective::kBroadcast), 0) << what;
  EXPECT_EQ(got.network, 0) << what;
}

// Parked, two steps are issued before the first of them runs; evaluations, which send less, follow
// training steps.
void ExpectFormula(const Setting& s, DType dtype, int64_t rows, Accumulation accumulation) {
  TinyRun run;
  run.world = s.world;
  run.park = true;
  run.options.executor.micro_batch_size = rows;
  ExecutorOptions& options = run.options.executor;
  options.sharding_strategy = s.strategy;
  if (IsHybrid(s.strategy)) options.shard_size = s.shards;
  if (s.k > 1) options.reshard_after_forward = s.k;
  options.mixed_precision.param_dtype = dtype;
  options.gradient_accumulation = accumulation;
  const int64_t wave = rows * s.world;
  const auto micro_batches = static_cast<int>((run.options.global_batch_size + wave - 1) / wave);
  // By rank: of steps 0 (evaluations, each the same) to 3.
  std::vector<std::array<std::vector<TrafficBytes>, 4>> got(s.world);
  run.on_traffic = [&](int rank, int64_t step, const TrafficBytes& bytes) {
    got[rank][step].push_back(bytes);
  };
  Train(run);
  options.micro_batches = micro_batches;
  StepTraffic planned;
  const auto model = MakeModel(run.shape());
  PlanMemory(*model, run.options, s.world, &planned);
  ExpectTraffic(got[0][1].at(0),
                {planned.all_gather_bytes, planned.reduce_scatter_bytes, planned.all_reduce_bytes},
                "planned for " + std::to_string(s.world) + " ranks, F " + std::to_string(s.shards));
  for (int rank = 0; rank < s.world; ++rank) {
    const Want train = WantOf(run, s, micro_batches, rank, true);
    const Want eval = WantOf(run, s, micro_batches, rank, false);
    for (int64_t step = 0; step <= 3; ++step) {
      EXPECT_EQ(got[rank][step].size(), step == 0 ? micro_batches : 1u);
      for (const TrafficBytes& bytes : got[rank][step]) {
        ExpectTraffic(bytes, step == 0 ? eval : train,
                      "step " + std::to_string(step) + ", rank " + std::to_string(rank) + " of " +
                          std::to_string(s.world) + ", F " + std::to_string(s.shards) + ", k " +
                          std::to_string(s.k) + ", " + std::to_string(micro_batches) +
                          " micro-batches of " + std::string(Name(dtype)));
      }
    }
  }
}

TEST(Traffic, IsTheFormulasOfEveryStrategy) {
  const Setting settings[] = {
      {Strategy::kFullShard, 1, 1},      {Strategy::kFullShard, 2, 2},
      {Strategy::kFullShard, 4, 4, 2},   {Strategy::kShardGradOp, 3, 3},
      {Strategy::kHybridShard, 4, 2},    {Strategy::kHybridShard, 6, 2},
      {Strategy::kHybridShard, 8, 4, 2}, {Strategy::kHybridShardGradOp, 6, 3},
      {Strategy::kNoShard, 3, 1},        {Strategy::kNoShard, 4, 1},
  };
  for (const Setting& s : settings) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t rows : {1, 2}) ExpectFormula(s, dtype, rows, Accumulation::kSharded);
    }
    ExpectFormula(s, DType::kBFloat16, 1, Accumulation::kUnsharded);
  }
}

}  // namespace
}  // namespace fsdp::testing
