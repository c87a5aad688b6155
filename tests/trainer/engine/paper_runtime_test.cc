// The paper's own runtime: the host's limiter and a caching allocator change no bit, whatever they
// come together with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/dhen/dhen.h"
#include "models/shape.h"
#include "tests/testing/everything.h"
#include "tests/testing/pairwise.h"
#include "tests/testing/tiny_run.h"
#include "tests/trainer/engine/settings.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/core/errors.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp::testing {
namespace {

using Buffers = FsdpOptions::Buffers;
using Limiter = FsdpOptions::Limiter;

// Strategies, worlds 1 to 4, accumulation, precision, recomputation, prefetch, limits, averages,
// logits, embedding and head: each pair of values, with the host's limiter over slots and over a
// caching allocator. Over slots, too: what is on the host or on a disk, and activations there; over
// the allocator: gradients that are concatenated. One run in two, until everything is asked for.
std::vector<TinyRun> Runs() {
  std::vector<TinyRun> runs;
  size_t rows = 0;
  const size_t apart = Everything() ? kRunsApart : 2 * kRunsApart;
  for (const std::vector<int>& row :
       CoverPairs({4, 5, 2, 9, 3, 2, 4, 3, 2, 2, 3, 2, 2, 2, 2, 8, 3, 2, 2, 3, 2}, kPairwiseSeed)) {
    if (rows++ % apart != Part(apart)) continue;
    TinyRun run;
    ExecutorOptions& o = run.options.executor;
    size_t i = 0;
    run.world = 1 + row[i++];
    o.sharding_strategy = static_cast<Strategy>(row[i++]);
    o.gradient_accumulation = static_cast<Accumulation>(row[i++]);
    o.mixed_precision = Precisions()[row[i++]];
    o.recompute = static_cast<Recompute>(row[i++]);
    o.limiter = Limiter::kHost;
    o.buffers = static_cast<Buffers>(row[i++]);
    o.limit_all_gathers = row[i++];
    o.backward_prefetch = static_cast<BackwardPrefetch>(row[i++]);
    o.forward_prefetch = row[i++] != 0;
    o.communicators = 1 + row[i++];
    const int secondary = row[i++];
    o.poison = row[i++] != 0;
    o.mixed_precision.cast = static_cast<FsdpOptions::MixedPrecision::CastIn>(row[i++]);
    if (row[i++] != 0) {
      run.options.optimizer.kind = OptimizerOptions::Kind::kAdamW;
      run.options.lr.lr = 0.01;
    }
    run.ranks = row[i++] != 0 ? RunProcessRanks : RunThreadRanks;
    const int offload = row[i++], activations = row[i++];
    if (o.buffers == Buffers::kSlots) {
      o.cpu_offload = Offloads()[offload];
      o.activation_offload = static_cast<ActivationOffload>(activations);
    }
    o.spill_part = 2048;  // Several of a shard.
    if (o.activation_offload == ActivationOffload::kSpill) {
      o.cpu_offload.spill = ::testing::TempDir();
    }
    if (row[i++] != 0) {
      run.options.optimizer.ema = 0.5;
      run.options.eval_ema = true;
    }
    if (row[i++] != 0) run.logits = {{0, 3}};
    const int outside = row[i++];
    run.config.tie_word_embeddings = outside == 0;
    if (outside == 2) o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
    o.concat_gradients = row[i++] != 0 && o.buffers == Buffers::kCaching;
    if (o.mixed_precision.master_dtype != DType::kFloat32) o.state_dtype = DType::kBFloat16;
    run.options.executor.micro_batch_size = 1;  // Micro-batches at every world.
    int shards = run.world;
    if (IsHybrid(o.sharding_strategy)) {
      const std::vector<int> divisors = Divisors(run.world, 1, run.world);
      o.shard_size = shards = divisors[secondary % divisors.size()];
    }
    const bool freed = o.sharding_strategy == Strategy::kFullShard ||
                       o.sharding_strategy == Strategy::kHybridShard;
    const std::vector<int> parts = Divisors(shards, 2, shards - 1);
    if (freed && secondary > 0 && !parts.empty()) o.reshard_after_forward = parts[0];
    runs.push_back(run);
  }
  return runs;
}

void ExpectBitsOfPlainOnes(const std::vector<TinyRun>& runs) {
  std::map<std::string, TinyResult> plain;
  for (const TinyRun& run : runs) {
    const TinyRun like = Plain(run);
    const std::string more = std::string(run.options.eval_ema ? ", averaged" : "") +
                             (run.logits.empty() ? "" : ", with logits");
    const auto [baseline, fresh] = plain.try_emplace(Describe(like) + more);
    if (fresh) baseline->second = Train(like);
    EXPECT_EQ(FirstDifference(Train(run), baseline->second), "") << Describe(run) << more;
  }
  std::printf("%zu runs against %zu\n", runs.size(), plain.size());
}

TEST(PaperRuntime, ChangesNoBit) { ExpectBitsOfPlainOnes(Runs()); }

// Over and over: what is reused, and when, depends on time.
TEST(PaperRuntime, AgainAndAgain) {
  TinyRun run;
  run.world = 3;
  run.steps = 6;
  run.options.executor.micro_batch_size = 1;
  const TinyResult plain = Train(run);
  run.options.executor.limiter = Limiter::kHost;
  run.options.executor.buffers = Buffers::kCaching;
  run.options.executor.communicators = 1;
  for (const int limit : {2, 0}) {
    run.options.executor.limit_all_gathers = limit;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(FirstDifference(Train(run), plain), "");
  }
}

// A model whose units are larger than what a segment holds of the small pool.
TinyRun Wide() {
  TinyRun run;
  run.world = 2;
  run.config.hidden_size = 192;
  run.config.intermediate_size = 768;
  run.config.num_hidden_layers = 4;
  run.options.executor.micro_batch_size = 1;
  run.options.executor.limiter = Limiter::kHost;
  run.options.executor.buffers = Buffers::kCaching;
  return run;
}

std::shared_ptr<Model> ModelOf(const TinyRun& run) {
  return run.model ? run.model() : std::shared_ptr<Model>(MakeModel(run.shape()));
}

MemoryPlan PlanOf(const TinyRun& run) { return PlanMemory(*ModelOf(run), run.options, run.world); }

TEST(PaperRuntime, PlannedStatisticsAreInOrder) {
  TinyRun run = Wide();
  run.options.executor.micro_batches = 2;
  const MemoryPlan plan = PlanOf(run);
  ASSERT_TRUE(plan.caching);
  const CachingStatistics& s = *plan.caching;
  EXPECT_LT(0, s.allocated.peak);
  EXPECT_LT(s.allocated.peak, s.active.peak);  // Gathered units that compute has not passed.
  EXPECT_LT(s.active.peak, s.reserved.peak);
  EXPECT_EQ(s.retries, 0);
  EXPECT_EQ(plan.bytes(), s.reserved.peak);  // The CPU's is one memory.
  EXPECT_GT(plan.bytes(MemoryPlace::kPinned), 0);
  TinyRun slots = run;
  slots.options.executor.buffers = Buffers::kSlots;
  const MemoryPlan planned = PlanOf(slots);
  EXPECT_FALSE(planned.caching);
  EXPECT_LT(planned.bytes(MemoryPlace::kDevice), s.reserved.peak);
  for (const MemoryKind kind : {MemoryKind::kParameters, MemoryKind::kOptimizer}) {
    EXPECT_NEAR(plan.bytes(kind), planned.bytes(kind), 4096);  // But for how each is rounded.
  }
  // Gathers run ahead as far as nobody limits them.
  TinyRun unlimited = run;
  unlimited.options.executor.limit_all_gathers = 0;
  EXPECT_GT(PlanOf(unlimited).caching->active.peak, s.active.peak);
}

// Backward's own memory is given back before the reduction, which reads a copy.
TEST(PaperRuntime, ConcatenatedGradientsAreReducedFromACopy) {
  TinyRun run = Wide();
  run.options.executor.concat_gradients = true;
  const auto model = MakeModel(run.shape());
  const Mesh mesh = MeshFor(run.options.executor, /*rank=*/0, run.world);
  const Schedule schedule = ScheduleFor(run.options.executor, *model, mesh, Mode::kTrain);
  std::set<int> copied;
  int reduced = 0;
  for (const Action& action : schedule.actions) {
    if (action.kind == ActionKind::kMove && std::string(NameOf(action)) == "join_gradient") {
      EXPECT_EQ(action.stream, StreamId::kCompute);
      EXPECT_EQ(action.reads.front().what, Resource::kGradient);
      EXPECT_EQ(action.gives, action.reads);
      EXPECT_EQ(action.takes, action.writes);
      copied.insert(action.unit);
    }
    if (action.kind != ActionKind::kReduce) continue;
    EXPECT_EQ(action.reads.front().what, Resource::kJoinedGradient);
    EXPECT_EQ(action.gives, action.reads);
    EXPECT_TRUE(copied.contains(action.unit));
    ++reduced;
  }
  EXPECT_GT(reduced, 4);
}

// Steps and evaluations by turns, where the device is as late or as quick as it can be.
CachingStatistics OfTurns(const TinyRun& run, bool late) {
  SimDevice device({.ready_when_waited_for = late});
  CachingBuffers buffers(device);
  const MeshCommunicators communicators(MeshFor(run.options.executor, /*rank=*/0, run.world),
                                        run.options.executor.communicators, ConnectSim);
  const std::shared_ptr<Model> model = ModelOf(run);
  Session session(device, buffers, *model, run.options, communicators);
  session.executor().MastersWritten();
  const auto no_load = [](int, const Batch&) {};
  for (int step = 1; step <= 12; ++step) {
    session.Train(step, session.FullTargets(), /*save=*/false, no_load, no_load);
    for (int i = 0; i < step % 4; ++i) session.Eval(1, no_load);
  }
  return *buffers.Used().caching;
}

TEST(PaperRuntime, EvaluationsByTurnsReserveNoMoreThanPlanned) {
  for (const int64_t vocab : {70, 5'000, 50'257, 131'072}) {
    for (const int limit : {0, 1, 2}) {
      for (const bool prefetch : {false, true}) {
        for (const int world : {1, 2, 3}) {
          TinyRun run = Wide();
          run.world = world;
          run.config.vocab_size = vocab;
          run.options.executor.limit_all_gathers = limit;
          run.options.executor.forward_prefetch = prefetch;
          const int64_t planned = PlanOf(run).caching->reserved.peak;
          for (const bool late : {false, true}) {
            EXPECT_LE(OfTurns(run, late).reserved.peak, planned)
                << vocab << ", limit " << limit << ", prefetch " << prefetch << ", world " << world
                << ", late " << late;
          }
        }
      }
    }
  }
}

// Ids are read a step ahead, so the host waits for less than in the first step.
TEST(PaperRuntime, TablesTakeNoMoreThanPlanned) {
  const DhenConfig shapes[] = {{.dense_columns = 1,
                                .table_rows = {500},
                                .table_width = 8,
                                .dense_vectors = 2,
                                .num_vectors = 4,
                                .num_hidden_layers = 1,
                                .num_attention_heads = 2,
                                .cross_rank = 4,
                                .intermediate_size = 16},
                               {.dense_columns = 3,
                                .table_rows = {50, 9000},
                                .table_bags = {1, 5},
                                .table_width = 16,
                                .dense_vectors = 3,
                                .num_vectors = 8,
                                .num_hidden_layers = 3,
                                .num_attention_heads = 4,
                                .cross_rank = 8,
                                .intermediate_size = 24},
                               {.dense_columns = 13,
                                .table_rows = {100000, 20, 7},
                                .table_width = 64,
                                .num_hidden_layers = 2}};
  for (const DhenConfig& shape : shapes) {
    for (const int world : {1, 2, 3}) {
      for (const int row : {0, 1, 2, 3, 4, 5, 6, 7}) {
        TinyRun run = Wide();
        run.world = world;
        run.model = [shape] { return std::make_shared<Dhen>(shape); };
        ExecutorOptions& o = run.options.executor;
        o.concat_gradients = row % 2 == 1;
        o.communicators = row % 4 < 2 ? 1 : 2;
        o.limit_all_gathers = row < 4 ? 2 : 0;
        o.micro_batches = 1 + row % 3;
        const CachingStatistics planned = *PlanOf(run).caching;
        for (const bool late : {false, true}) {
          const CachingStatistics got = OfTurns(run, late);
          const std::string what = std::to_string(shape.table_width) + " wide, world " +
                                   std::to_string(world) + ", row " + std::to_string(row);
          EXPECT_LE(got.allocated.peak, planned.allocated.peak) << what;
          EXPECT_LE(got.active.peak, planned.active.peak) << what;
          EXPECT_LE(got.reserved.peak, planned.reserved.peak) << what;
        }
      }
    }
  }
}

// The least memory that it runs in is reached by trying again, and the bits are the same; a step
// below, nothing helps.
TEST(PaperRuntime, TheLimitCostsRetriesAndNoBit) {
  TinyRun run = Wide();
  run.options.executor.micro_batches = 3;
  run.options.executor.limit_all_gathers = 0;  // Gathers run ahead until memory ends.
  constexpr int64_t kMiB = 1 << 20;
  int64_t limit = PlanOf(run).caching->reserved.peak;
  for (;; limit -= 2 * kMiB) {
    run.options.executor.memory_limit = limit;
    try {
      EXPECT_LE(PlanOf(run).caching->reserved.peak, limit);
    } catch (const MemoryError&) {
      break;
    }
    ASSERT_GT(limit, 0);
  }
  limit += 2 * kMiB;
  run.options.executor.memory_limit = limit;
  const int64_t retries = PlanOf(run).caching->retries;
  EXPECT_GT(retries, 0);
  std::printf("%lld retries at %lld MiB\n", static_cast<long long>(retries),
              static_cast<long long>(limit / kMiB));
  TinyRun slots = run;
  slots.options.executor = Wide().options.executor;
  slots.options.executor.buffers = Buffers::kSlots;
  const TinyResult plain = Train(slots);
  EXPECT_EQ(FirstDifference(Train(run), plain), "");
  run.options.executor.memory_limit = 4 * kMiB;
  EXPECT_THROW(Train(run), std::exception);
}

// Where all ranks have the same gradient, a sum is one of them times their number.
TEST(FakeReduce, IsTheSumOfEqualRanks) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kHybridShard, Strategy::kNoShard}) {
    for (const DType reduce : {DType::kFloat32, DType::kBFloat16}) {
      TinyRun run;
      run.world = 4;  // A power of two: nothing is rounded.
      run.options.global_batch_size = 8;
      run.options.executor.micro_batch_size = 1;
      run.options.executor.sharding_strategy = strategy;
      run.options.executor.mixed_precision.reduce_dtype = reduce;
      if (IsHybrid(strategy)) run.options.executor.shard_size = 2;
      const TinyRun::Sample sample = SampleOf(run);
      run.sample = [sample](int64_t step, int64_t index, std::span<int32_t> tokens,
                            std::span<float> weights) { sample(step, index / 4, tokens, weights); };
      const TinyResult real = Train(run);
      run.options.executor.fake_reduce = true;
      EXPECT_EQ(FirstDifference(Train(run), real), "") << Describe(run);
    }
  }
}

// Nothing is sent but the step's scalars.
TEST(FakeCollectives, SendNothing) {
  for (const Buffers buffers : {Buffers::kSlots, Buffers::kCaching}) {
    for (const int kept : {0, 2}) {
      TinyRun run;
      run.world = 4;
      run.steps = 2;
      run.options.executor.micro_batch_size = 1;
      run.options.executor.limiter = Limiter::kHost;
      run.options.executor.buffers = buffers;
      if (kept > 0) run.options.executor.reshard_after_forward = kept;
      run.options.executor.fake_all_gather = run.options.executor.fake_reduce = true;
      run.on_traffic = [](int, int64_t, const TrafficBytes& sent) {
        EXPECT_EQ(sent.of(Collective::kAllGather), 0);
        EXPECT_EQ(sent.of(Collective::kReduceScatter), 0);
        EXPECT_LT(sent.of(Collective::kAllReduce), 1024);
      };
      EXPECT_TRUE(std::isfinite(Train(run).losses.at(1)));
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
