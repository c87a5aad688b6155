// Between which ranks of a job the collectives of a step are, as a simulated communicator tells
// whoever charges them: by where those are, their links can be told apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "models/regnet/regnet.h"
#include "tests/testing/tiny_run.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/try_collectives.h"
#include "trainer/optim/muon.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp::testing {
namespace {

using Quantize = FsdpOptions::Quantize;
using Ranks = std::vector<int>;
// How often each collective, by its name, goes over these ranks in a step.
using Counts = std::map<std::pair<std::string, Ranks>, int64_t>;

struct Setting {
  int world = 1, shards = 1;
  int k = 1;       // Ranks of a secondary copy; 1: there is none.
  int inside = 0;  // Ranks of a host that reduce together first; 0: all that share a copy.
  Quantize::Gather gather = Quantize::Gather::kNone;
  Quantize::Reduce reduce = Quantize::Reduce::kNone;
  int64_t micro_batches = 1;
};

SessionOptions OptionsOf(const Setting& s, int queues) {
  SessionOptions options = TinyRun::TinyOptions();
  ExecutorOptions& o = options.executor;
  o.communicators = queues;
  o.micro_batches = static_cast<int>(s.micro_batches);
  o.sharding_strategy = s.shards == 1         ? Strategy::kNoShard
                        : s.shards == s.world ? Strategy::kFullShard
                                              : Strategy::kHybridShard;
  if (IsHybrid(o.sharding_strategy)) o.shard_size = s.shards;
  if (s.k > 1) o.reshard_after_forward = s.k;
  o.quantize = {.gather = s.gather, .reduce = s.reduce, .min_size = 1};
  o.inside = s.inside;
  return options;
}

struct Found {
  Counts counts;
  int64_t units = 0;
  int64_t largest_sum = 0;  // Elements of the largest all-reduce over all ranks.
};

Found FindCollectives(Model& model, const SessionOptions& options, int rank, const Ranks& ranks) {
  SimDevice device;
  PlanRecorder memory;
  Found found;
  const MeshCommunicators communicators(
      MeshFor(options.executor, rank, static_cast<int>(ranks.size()), ranks),
      static_cast<int>(options.executor.communicators),
      ConnectSimAt([&](const Stream&, const RankGroup& group, const CollectiveCall& call) {
        EXPECT_EQ(group.NameOf(group.rank()), rank);
        ++found.counts[{Name(call.kind), group.ranks()}];
        if (call.kind == Collective::kAllReduce && group.ranks() == ranks) {
          found.largest_sum = std::max(found.largest_sum, call.n);
        }
        return SimWork();
      }));
  Session session(device, memory, model, options, communicators);
  const Layout& layout = session.executor().layout();
  found.units = std::ssize(layout.units);
  EXPECT_EQ(layout.units.size(), layout.flat_parameters.size());  // One each.
  session.Train(1, session.FullTargets(), /*save=*/false, [](int, const Batch&) {});
  return found;
}

// The counts of the rank at `position`. Units but the root are gathered for each forward and each
// backward.
Counts WantOf(const Setting& s, int position, const Ranks& ranks, int64_t units) {
  Counts want;
  const auto over = [&](int first, int count, int stride) {
    Ranks some;
    for (int i = 0; i < count; ++i) some.push_back(ranks[first + i * stride]);
    return some;
  };
  const auto add = [&](const char* name, const Ranks& some, int64_t times) {
    if (times > 0 && some.size() > 1) want[{name, some}] += times;
  };
  const int copy = position / s.shards * s.shards;  // Where that of this rank begins.
  const Ranks share = over(copy, s.shards, 1), all = over(0, s.world, 1);
  const Ranks same_shard = over(position % s.shards, s.world / s.shards, s.shards);
  const int64_t again = s.micro_batches * (units - 1), reductions = s.micro_batches * units;
  add("all_gather", share, 1 + again);
  add("all_gather", s.k > 1 ? over(position / s.k * s.k, s.k, 1) : share, again);
  if (s.reduce == Quantize::Reduce::kNone) {
    if (s.shards > 1) add("reduce_scatter", share, reductions);
    add("all_reduce", same_shard, units);
  } else {
    const int inside = s.inside == 0 ? s.shards : s.inside;
    add("all_to_all", over(position / inside * inside, inside, 1), reductions);
    add("all_to_all", over(copy + position % inside, s.shards / inside, inside), reductions);
    add("all_to_all", same_shard, units);
    add("all_gather", same_shard, units);
  }
  add("all_reduce", all, 1);  // The step's scalars.
  return want;
}

// Positions are numbered in another order than ranks.
void ExpectGroups(const Setting& s) {
  ASSERT_NE(s.world % 5, 0);
  Ranks ranks;
  for (int p = 0; p < s.world; ++p) ranks.push_back((5 * p + 3) % s.world);
  for (const int queues : {1, 2}) {
    for (int position = 0; position < s.world; ++position) {
      Gpt2 model(TinyRun::TinyConfig());
      const Found found = FindCollectives(model, OptionsOf(s, queues), ranks[position], ranks);
      EXPECT_EQ(found.counts, WantOf(s, position, ranks, found.units))
          << "position " << position << " of " << s.world << ", F " << s.shards << ", k " << s.k
          << ", " << s.inside << " inside, " << queues << " queues";
    }
  }
}

TEST(CollectiveGroups, AreThoseOfTheStrategy) {
  for (const Setting& s : {Setting{2, 2}, {6, 6}, {6, 3}, {8, 2}, {4, 1}, {1, 1}}) {
    ExpectGroups(s);
  }
  ExpectGroups({.world = 6, .shards = 3, .micro_batches = 3});
}

TEST(CollectiveGroups, SecondaryCopiesAreOfNeighbours) {
  ExpectGroups({.world = 6, .shards = 6, .k = 3});
  ExpectGroups({.world = 8, .shards = 4, .k = 2, .micro_batches = 2});
}

TEST(CollectiveGroups, HopsAreInsideHostsAndBetweenThem) {
  constexpr auto kInt4 = Quantize::Reduce::kInt4;
  ExpectGroups({.world = 4, .shards = 4, .reduce = kInt4});
  ExpectGroups({.world = 4, .shards = 4, .inside = 2, .reduce = kInt4, .micro_batches = 2});
  ExpectGroups({.world = 4, .shards = 4, .inside = 1, .reduce = kInt4});
  ExpectGroups({.world = 6, .shards = 3, .reduce = kInt4});
  ExpectGroups({.world = 8, .shards = 4, .inside = 2, .reduce = kInt4});
}

// All of ZeRO++, in two copies over two hosts of four each.
TEST(CollectiveGroups, EveryAxisAtOnce) {
  ExpectGroups({.world = 16,
                .shards = 8,
                .k = 2,
                .inside = 4,
                .gather = Quantize::Gather::kInt8,
                .reduce = Quantize::Reduce::kInt8});
}

// Remembers what it is made to try.
class TryingCommunicator final : public Communicator {
 public:
  TryingCommunicator(const RankGroup& group, std::map<Ranks, std::vector<Size>>& tried)
      : Communicator(group, DeviceType::kSim), tried_(tried[group.ranks()]) {}

  void Try(Device&, const std::vector<Size>& sizes) override {
    tried_.insert(tried_.end(), sizes.begin(), sizes.end());
  }
  void Abort(const std::string&) override {}

 private:
  void Enqueue(Stream&, Operation, const CollectiveCall&) override { ADD_FAILURE(); }

  std::vector<Size>& tried_;
};

std::map<Ranks, std::vector<Communicator::Size>> TriedSizes(const Model& model,
                                                            const ExecutorOptions& options,
                                                            int rank, const Ranks& ranks) {
  std::map<Ranks, std::vector<Communicator::Size>> tried;
  SimDevice device;
  const MeshCommunicators communicators(
      MeshFor(options, rank, static_cast<int>(ranks.size()), ranks),
      static_cast<int>(options.communicators), [&](const std::string&, const RankGroup& group) {
        return std::make_unique<TryingCommunicator>(group, tried);
      });
  TryCollectives(device, model, options, communicators);
  return tried;
}

// Two sums a norm and micro-batch, one of them in backward; none is made again. The largest of a
// step's sums over all ranks is tried before the first step: that of the running statistics, or
// where ranks are many that of a norm's parts.
TEST(CollectiveGroups, BatchNormsSumOverAllRanks) {
  RegNet model({.image_size = 11,
                .num_labels = 7,
                .embedding_size = 16,
                .hidden_sizes = {16},
                .depths = {1},
                .groups_width = 8});
  constexpr int64_t kNorms = 5, kRunning = 2 * kNorms * 16;
  int64_t norms = 0;
  for (const ModelSegment& segment : model.segments()) norms += segment.batch_norms;
  ASSERT_EQ(norms, kNorms);
  for (const auto& [world, shards, sync] : std::vector<std::tuple<int, int, bool>>{
           {4, 4, true}, {4, 2, false}, {8, 8, false}, {8, 2, true}, {8, 8, true}}) {
    const Setting s{.world = world, .shards = shards, .micro_batches = 3};
    SCOPED_TRACE(std::to_string(world) + ", F " + std::to_string(shards));
    SessionOptions options = OptionsOf(s, /*queues=*/2);
    options.executor.batch_norm_sync = sync;
    options.executor.recompute = Recompute::kFull;
    Ranks ranks;
    for (int p = 0; p < world; ++p) ranks.push_back((5 * p + 3) % world);
    for (int position = 0; position < world; ++position) {
      const Found found = FindCollectives(model, options, ranks[position], ranks);
      Counts want = WantOf(s, position, ranks, found.units);
      if (sync) want[{"all_reduce", ranks}] += 2 * kNorms * s.micro_batches;
      EXPECT_EQ(found.counts, want);

      const auto sizes = TriedSizes(model, options.executor, ranks[position], ranks);
      int64_t tried = 0;
      for (const Communicator::Size& size : sizes.at(ranks)) {
        if (size.kind == Collective::kAllReduce) tried = std::max(tried, size.n);
      }
      if (sync && world == 8) {
        EXPECT_EQ(found.largest_sum, world * (1 + 2 * 16));
        EXPECT_EQ(tried, found.largest_sum);
      } else {  // With the scalars, of which one is left out where no loss is scaled.
        EXPECT_GT(found.largest_sum, kRunning);
        EXPECT_EQ(tried, found.largest_sum + 1);
      }
    }
  }
}

// Matrices go to owners with Muon alone; Adafactor adds up sums over their rows and columns.
TEST(CollectiveGroups, MatricesTravelWhereTheyAreUpdatedWhole) {
  const Gpt2 model(TinyRun::TinyConfig());
  const Ranks ranks = {0, 1};
  for (const OptimizerKind kind : {OptimizerKind::kMuon, OptimizerKind::kAdafactor}) {
    OptimizerOptions optimizer;
    optimizer.kind = kind;
    ExecutorOptions options;
    options.whole = WholeRuleOf(optimizer);
    options.factored = kind == OptimizerKind::kAdafactor;
    bool travels = false;
    for (const Communicator::Size& size : TriedSizes(model, options, 0, ranks).at(ranks)) {
      travels |= size.kind == Collective::kAllToAll;
    }
    EXPECT_EQ(travels, kind == OptimizerKind::kMuon);
  }
}

}  // namespace
}  // namespace fsdp::testing
