// Every wait of every schedule is needed. The real executor and model run on the sim device, under
// the stream checker, over the planned arena; then again with one wait left out, for each wait in
// turn. Without a wait the checker must report a race, unless the wait is marked `pacing`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/gpt2/config.h"
#include "models/llama/config.h"
#include "models/moe/config.h"
#include "models/shape.h"
#include "tests/testing/everything.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/core/philox.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/slot_places.h"
#include "trainer/nn/lora.h"
#include "trainer/optim/muon.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

Gpt2Config SmallConfig() {
  Gpt2Config config;
  config.hidden_size = 8;
  config.intermediate_size = 8;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 2;
  config.vocab_size = 16;
  config.max_position_embeddings = 4;
  return config;
}

// A device on which nothing is seen to be over by who does not wait for it.
class UnseenDevice final : public Device {
 public:
  UnseenDevice(std::shared_ptr<StreamChecker> checker, DeviceType plans_for)
      : Device(std::move(checker)), plans_for_(plans_for) {}
  DeviceType type() const override { return DeviceType::kSim; }
  DeviceType kernel_type() const override { return plans_for_; }
  std::unique_ptr<Stream> CreateStream(std::string name, int, StreamPriority) override {
    return std::make_unique<UnseenStream>(*this, std::move(name));
  }
  double Now() const override { return 0; }
  void StartTrace() override {}
  std::vector<Span> TakeTrace() override { return {}; }

 private:
  struct UnseenEvent final : Event {
    bool Ready() const override { return false; }
    void Block() const override {}
    double DoTime() const override { return 0; }
  };
  class UnseenStream final : public Stream {
   public:
    using Stream::Stream;

   private:
    void DoEnqueue(Operation) override {}
    std::shared_ptr<Event> DoRecord(bool) override { return std::make_shared<UnseenEvent>(); }
    void DoWait(const EventPtr&) override {}
  };
  std::byte* DoAllocate(int64_t bytes, MemoryPlace) override {
    const uintptr_t address = next_;
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<std::byte*>(address);
  }
  void DoFree(std::byte*, int64_t, MemoryPlace) noexcept override {}

  static constexpr int64_t kAlignment = 512;  // As a device's.
  const DeviceType plans_for_;
  uintptr_t next_ = uintptr_t{1} << 47;
};

class Runner {
 public:
  Runner(const ModelShape& shape, const ExecutorOptions& executor, int world,
         const std::vector<ParameterGroup>& groups, DeviceType device = DeviceType::kCpu)
      : device_(device),
        model_(MakeModel(shape)),
        meshes_{MeshFor(executor, world - 1, world), MeshFor(executor, 0, world)} {
    if (!FreezeParameters(*model_, groups).empty()) throw std::invalid_argument("groups");
    // Records are moved as other frozen weights are; a model without any has a mistake, which is
    // none here.
    if (world % 2 == 0) EncodeFrozen(*model_, {.rank = 0, .base = LoraBase::kNf4});
    options_.executor = executor;
    if (executor.whole) {
      options_.optimizer.kind =
          executor.factored ? OptimizerKind::kAdafactor : OptimizerKind::kMuon;
      options_.optimizer.muon.row_beta2 = 0.9;
    }
    options_.executor.sample_length = 3;
    options_.global_batch_size = world * executor.micro_batches;
    plan_ = PlanMemory(*model_, options_, world, /*traffic=*/nullptr, device_);
  }

  // From here on a snapshot is taken behind the second and the third step.
  void TakeSnapshots() {
    options_.snapshot = true;
    plan_ = PlanMemory(*model_, options_, meshes_[0].world_size(), /*traffic=*/nullptr, device_);
  }

  // From here on averages are what evaluations gather.
  void EvaluateAverages() {
    options_.optimizer.ema = 0.9;
    options_.eval_ema = options_.executor.averages = true;
    plan_ = PlanMemory(*model_, options_, meshes_[0].world_size(), /*traffic=*/nullptr, device_);
  }

  Schedule Of(Mode mode) const { return ScheduleFor(options_.executor, *model_, meshes_[0], mode); }

  Layout layout() const { return LayoutFor(options_.executor, *model_, meshes_[0].shard_size()); }

  // The first race of three training steps, two evaluations and a training step, or "". Looks at
  // the last rank, then at the first: a unit that the last rank fetches may lie where no smaller
  // unit was before it, and the first replica alone adds up rows and columns.
  std::string FirstRace(Mode mode, const Schedule& schedule) {
    try {
      for (const Mesh& mesh : meshes_) {
        Steps(mesh, mode, schedule);
        if (!options_.executor.cpu_offload.optimizer && !options_.executor.factored) break;
      }
    } catch (const RaceFound& race) {
      return race.what();
    }
    return "";
  }

 private:
  struct RaceFound : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  bool Caches() const { return options_.executor.buffers == FsdpOptions::Buffers::kCaching; }

  void Steps(const Mesh& mesh, Mode mode, const Schedule& schedule) {
    bool found = false;  // Thrown once: what unwinds frees memory under the checker's eyes.
    const auto checker = std::make_shared<StreamChecker>([&](const StreamChecker::Race& race) {
      if (!std::exchange(found, true)) throw RaceFound(race.ToString());
    });
    // The checker is not told when a caching allocator sees that work is over: it would then miss
    // no wait for it.
    const std::unique_ptr<Device> made =
        Caches() ? std::unique_ptr<Device>(std::make_unique<UnseenDevice>(checker, device_))
                 : std::make_unique<SimDevice>(SimModel(), checker, device_);
    Device& device = *made;
    const std::unique_ptr<PhasedAllocator> allocator =
        MakeAllocator(device, options_.executor, plan_);
    const MeshCommunicators communicators(mesh, options_.executor.communicators, ConnectSim);
    Session session(device, *allocator, *model_, options_, communicators);
    session.executor().ReplaceSchedule(mode, schedule);
    const auto load = [](int, const Batch&) {};
    const auto train = [&](int64_t step) {
      session.Train(step, session.FullTargets(), /*save=*/false, load);
      if (step > 1) session.executor().Result(session.executor().steps() - 2);
    };
    train(1);
    train(2);
    if (options_.snapshot) session.TakeSnapshot();
    train(3);
    if (options_.snapshot) session.TakeSnapshot();
    session.Eval(1, load);
    session.Eval(1, load);
    train(4);
    session.executor().Synchronize();  // The arena is freed under the checker's eyes, too.
  }

  const DeviceType device_;  // Whose memory and workspaces.
  std::shared_ptr<Model> model_;
  SessionOptions options_;
  const Mesh meshes_[2];
  MemoryPlan plan_;
};

// Leaves out waits of one in so many lists, chosen by a hash of the list, and of each test's first
// list. Under AddressSanitizer, where the code counts and not the lists, the others are not looked
// at.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kUnderAsan = true;
#else
constexpr bool kUnderAsan = false;
#endif
uint64_t OneListIn() { return kUnderAsan ? 18 : testing::Everything() ? 1 : 12; }
bool IsOfThisPart(uint64_t n) { return n % OneListIn() == testing::Part(OneListIn()); }

struct Totals {
  int schedules = 0, waits = 0, pacing = 0, across = 0;
};

// Whether the action takes a slot in other bytes than the take of that slot before it: units of
// unequal sizes lie in slots so (slot_places.h). The list, which knows slots alone, has a wait.
bool TakesOtherBytes(const Schedule& schedule, const Layout& layout, size_t action) {
  const std::vector<Action>& actions = schedule.actions;
  const auto slot_of = [&](size_t a) {
    const std::vector<Use>& takes = actions[a].takes;
    return takes.empty() || takes[0].what != Resource::kValue ? -1 : takes[0].slot;
  };
  if (actions[action].kind == ActionKind::kHostWait) ++action;  // It holds back the take behind it.
  if (slot_of(action) < 0) return false;
  size_t before = action;
  do {
    before = (before + actions.size() - 1) % actions.size();
  } while (slot_of(before) != slot_of(action));
  const SlotPlaces places = PlacesOfGathers(schedule, layout);
  const auto end = [&](size_t a) {
    return places.offsets[a] + layout.GatheredBytes(actions[a].unit);
  };
  return end(before) <= places.offsets[action] || end(action) <= places.offsets[before];
}

// Leaves out each wait of the list in turn.
void LeaveOutWaits(Runner& runner, Mode mode, const Schedule& schedule, Totals& totals) {
  for (size_t a = 0; a < schedule.actions.size(); ++a) {
    for (size_t w = 0; w < schedule.actions[a].waits.size(); ++w) {
      Schedule without = schedule;
      const Wait wait = without.actions[a].waits[w];
      without.actions[a].waits.erase(without.actions[a].waits.begin() + w);
      ++totals.waits;
      totals.pacing += wait.pacing;
      totals.across += wait.step_before;
      if (wait.pacing) continue;
      if (runner.FirstRace(mode, without) != "") continue;
      ASSERT_TRUE(TakesOtherBytes(schedule, runner.layout(), a))
          << "action " << a << " does not need its wait for " << wait.action << "\n"
          << schedule.ToString();
    }
  }
}

void CheckEveryWait(const ExecutorOptions& options, int world, std::set<uint64_t>& seen,
                    Totals& totals, const std::vector<ParameterGroup>& groups = {},
                    DeviceType device = DeviceType::kCpu, const ModelShape& model = SmallConfig()) {
  Runner runner(model, options, world, groups, device);
  if (options.averages) runner.EvaluateAverages();
  for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
    const Schedule schedule = runner.Of(mode);
    const uint64_t shape =
        HashBytes(schedule.ToString(), (options.recompute == Recompute::kSelective) + 2 * world +
                                           100 * static_cast<int>(mode));
    if (!seen.insert(shape).second) continue;
    if (kUnderAsan && !IsOfThisPart(shape)) continue;
    ++totals.schedules;
    ASSERT_EQ(runner.FirstRace(mode, schedule), "") << schedule.ToString();
    const bool kept = options.reshard_after_forward.has_value();
    const int least = 2 * (IsHybrid(options.sharding_strategy) ? 2 : 1) * (kept ? 2 : 1);
    if (world > least) {
      // The list is that of so few ranks: what is needed there is needed here. One in eight all the
      // same.
      ExecutorOptions few = options;
      if (few.shard_size) few.shard_size = kept ? 4 : 2;
      few.inside = 0;
      if (kept) few.reshard_after_forward = 2;
      ASSERT_EQ(schedule.ToString(), Runner(model, few, least, groups).Of(mode).ToString());
      if (shape % 8 != 0) continue;
    }
    if (seen.size() > 4 && !IsOfThisPart(shape / 8)) continue;
    LeaveOutWaits(runner, mode, schedule, totals);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// A world, a strategy, the shards of a hybrid one, and the parts that are kept after forward.
class WaitDeletion : public ::testing::TestWithParam<std::tuple<int, Strategy, int, int>> {};

TEST_P(WaitDeletion, EveryWaitIsNeeded) {
  const auto [world, strategy, shards, kept] = GetParam();
  std::set<uint64_t> seen;
  Totals totals;
  for (const BackwardPrefetch backward :
       {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
    for (int bits = 0; bits < 8; ++bits) {
      for (const int limit : {0, 1, 2, 3}) {
        for (const int buffers : {1, 2}) {
          for (const Recompute recompute :
               {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
            for (const int micro_batches : {1, 3}) {
              // A third of the settings where there are other groups, too.
              const int sum = bits + limit + buffers + static_cast<int>(recompute) + micro_batches +
                              static_cast<int>(backward);
              if ((shards > 0 || kept > 0) && sum % 3 != 0) continue;
              ExecutorOptions o;
              o.sharding_strategy = strategy;
              if (IsHybrid(strategy)) o.shard_size = shards;
              if (kept > 0) o.reshard_after_forward = kept;
              o.backward_prefetch = backward;
              o.forward_prefetch = bits & 1;
              o.communicators = bits & 2 ? 1 : 2;
              o.gradient_accumulation =
                  bits & 4 ? Accumulation::kUnsharded : Accumulation::kSharded;
              o.limit_all_gathers = limit;
              o.reduce_buffers = buffers;
              o.recompute = recompute;
              o.micro_batches = micro_batches;
              o.poison = (bits ^ limit) & 1;
              CheckEveryWait(o, world, seen, totals);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
  std::printf("%d schedules, %d waits, %d of them pacing, %d for the step before\n",
              totals.schedules, totals.waits, totals.pacing, totals.across);
  RecordProperty("waits", totals.waits);
  // full_shard at two ranks has over 30,000 waits. A part of the lists has half its share or more.
  const bool most = world == 2 && strategy == Strategy::kFullShard;
  if (!kUnderAsan && world <= 2) {
    const int part = static_cast<int>(OneListIn());
    EXPECT_GT(totals.waits, most ? 30000 / (part == 1 ? 1 : 2 * part) : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, WaitDeletion,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(Strategy::kFullShard,
                                                              Strategy::kShardGradOp,
                                                              Strategy::kNoShard),
                                            ::testing::Values(0), ::testing::Values(0)));
INSTANTIATE_TEST_SUITE_P(Groups, WaitDeletion,
                         ::testing::Values(std::tuple{4, Strategy::kHybridShard, 2, 0},
                                           std::tuple{6, Strategy::kHybridShard, 3, 0},
                                           std::tuple{4, Strategy::kHybridShardGradOp, 2, 0},
                                           std::tuple{8, Strategy::kHybridShardGradOp, 2, 0},
                                           std::tuple{4, Strategy::kFullShard, 0, 2},
                                           std::tuple{9, Strategy::kFullShard, 0, 3},
                                           std::tuple{8, Strategy::kHybridShard, 4, 2}));

ExecutorOptions LimitedByTheHost(int bits) {
  ExecutorOptions o;
  o.limiter = FsdpOptions::Limiter::kHost;
  o.backward_prefetch = static_cast<BackwardPrefetch>(bits % 3);
  o.forward_prefetch = bits & 1;
  o.communicators = bits & 2 ? 1 : 2;
  o.gradient_accumulation = bits & 4 ? Accumulation::kUnsharded : Accumulation::kSharded;
  o.micro_batches = bits & 8 ? 3 : 1;
  o.recompute = bits & 16 ? Recompute::kFull : Recompute::kNone;
  o.poison = bits & 32;
  return o;
}

// Gradients that travel in blocks lie in memory of the stream that sends them, and of no other.
TEST(WaitDeletion, QuantizedReductions) {
  std::set<uint64_t> seen;
  Totals totals;
  for (int bits = 0; bits < 64; ++bits) {
    ExecutorOptions o = LimitedByTheHost(bits);
    o.limiter = FsdpOptions::Limiter::kDevice;
    o.limit_all_gathers = 1 + bits % 3;
    o.quantize.reduce = FsdpOptions::Quantize::Reduce::kInt4;
    o.quantize.min_size = 1;
    if (bits % 3 == 0) {
      o.sharding_strategy = Strategy::kHybridShard;
      o.shard_size = 2;
    } else {
      o.inside = 2;
    }
    if (bits % 5 == 0) o.cpu_offload.optimizer = true;
    CheckEveryWait(o, 4, seen, totals);
    if (HasFatalFailure()) return;
  }
  std::printf("%d schedules, %d waits\n", totals.schedules, totals.waits);
  EXPECT_GT(totals.waits, 0);
}

// Memory of a gather's own, from the allocator that real runs have.
TEST(WaitDeletion, CachingBuffers) {
  std::set<uint64_t> seen;
  Totals totals;
  for (int bits = 0; bits < 128; ++bits) {
    ExecutorOptions o = LimitedByTheHost(bits);
    o.buffers = FsdpOptions::Buffers::kCaching;
    o.concat_gradients = bits % 3 == 1;
    o.limit_all_gathers = bits % 5 % 4;
    o.sharding_strategy = bits & 64 ? Strategy::kShardGradOp : Strategy::kFullShard;
    if (bits % 7 == 0) {
      o.sharding_strategy = bits & 64 ? Strategy::kHybridShardGradOp : Strategy::kHybridShard;
      o.shard_size = 2;
    }
    CheckEveryWait(o, IsHybrid(o.sharding_strategy) ? 4 : 2, seen, totals);
    if (HasFatalFailure()) return;
  }
  std::printf("%d schedules, %d waits, %d of them pacing\n", totals.schedules, totals.waits,
              totals.pacing);
}

// The root's memory is given back at the step's end, behind its last reader and behind others'
// runs.
TEST(WaitDeletion, TheRootIsHeld) {
  std::set<uint64_t> seen;
  Totals totals;
  for (int bits = 0; bits < 128; bits += 3) {
    ExecutorOptions o = LimitedByTheHost(bits);
    o.buffers = FsdpOptions::Buffers::kCaching;
    o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
    o.limit_all_gathers = bits % 5 % 4;
    o.sharding_strategy = bits & 64 ? Strategy::kShardGradOp : Strategy::kFullShard;
    const std::vector<ParameterGroup> frozen{{"*wte*", {}, 1, true}, {"*wpe*", {}, 1, true}};
    CheckEveryWait(o, 2, seen, totals, bits % 2 == 0 ? std::vector<ParameterGroup>() : frozen);
    if (HasFatalFailure()) return;
  }
  std::printf("%d schedules, %d waits, %d of them pacing\n", totals.schedules, totals.waits,
              totals.pacing);
  EXPECT_GT(totals.waits, kUnderAsan ? 0 : 100);
}

// The host's waits are waits like any other; what it has waited for nobody else waits for.
TEST(WaitDeletion, LimiterOfTheHost) {
  std::set<uint64_t> seen;
  Totals totals;
  for (int bits = 0; bits < 96; ++bits) {
    ExecutorOptions o = LimitedByTheHost(bits);
    o.limit_all_gathers = 1 + bits % 4 % 3;
    o.sharding_strategy = bits % 5 == 0 ? Strategy::kHybridShard : Strategy::kFullShard;
    if (IsHybrid(o.sharding_strategy)) o.shard_size = 2;
    CheckEveryWait(o, IsHybrid(o.sharding_strategy) ? 4 : 2, seen, totals);
    if (HasFatalFailure()) return;
  }
  std::printf("%d schedules, %d waits\n", totals.schedules, totals.waits);
}

// Units that hold several blocks, and one unit that holds all.
TEST(WaitDeletion, OtherWraps) {
  std::set<uint64_t> seen;
  Totals totals;
  for (const WrapPolicy wrap : {WrapPolicy{AutoWrap::kSize, 600}, WrapPolicy{AutoWrap::kNone, 0}}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      ExecutorOptions o;
      o.auto_wrap = wrap;
      o.recompute = recompute;
      o.micro_batches = 2;
      CheckEveryWait(o, 2, seen, totals);
    }
  }
  EXPECT_GE(totals.schedules, kUnderAsan ? 0 : 4);
}

// Rows that segments share, of experts that are gathered in pieces; tallies, and biases by them.
TEST(WaitDeletion, ExpertsInPieces) {
  MoeConfig config;
  config.hidden_size = config.intermediate_size = config.moe_intermediate_size = 8;
  config.num_hidden_layers = config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.vocab_size = 16;
  config.max_position_embeddings = 4;
  config.num_experts = 4;
  config.scoring_func = RouterScores::kSigmoid;
  config.score_correction_bias = true;
  std::set<uint64_t> seen;
  Totals totals;
  for (int bits = 0; bits < 64; ++bits) {
    config.expert_pieces = 1 << bits % 3;
    ExecutorOptions o = LimitedByTheHost(bits);
    if (bits % 3 != 0) o.limiter = FsdpOptions::Limiter::kDevice;
    o.limit_all_gathers = 1 + bits % 5 % 3;
    o.recompute = static_cast<Recompute>(bits / 4 % 3);
    if (bits % 7 == 0) o.cpu_offload.optimizer = o.cpu_offload.params = true;
    if (bits % 3 == 1) o.activation_offload = ActivationOffload::kHost;
    o.balance.bias_rate = bits % 2 == 0 ? 0.01 : 0;
    CheckEveryWait(o, 2, seen, totals, {}, DeviceType::kCpu, config);
    if (HasFatalFailure()) return;
  }
  std::printf("%d schedules, %d waits\n", totals.schedules, totals.waits);
  EXPECT_GT(totals.waits, kUnderAsan ? 0 : 100);
}

// Updates on the host, of all units or of some, with parameters on the device or there.
ExecutorOptions Offloaded(int bits) {
  ExecutorOptions o;
  o.cpu_offload = {.params = (bits & 1) != 0, .optimizer = true};
  o.cpu_offload.optimizer_share = bits & 2 ? 0.5 : 0;
  o.micro_batches = bits & 4 ? 3 : 1;
  o.gradient_accumulation = bits & 8 ? Accumulation::kUnsharded : Accumulation::kSharded;
  if (bits & 16) o.mixed_precision.param_dtype = DType::kBFloat16;
  o.communicators = bits & 32 ? 1 : 2;
  o.reduce_buffers = 1 + bits % 3 % 2;
  o.backward_prefetch = static_cast<BackwardPrefetch>(bits % 5 % 3);
  o.activation_offload = static_cast<ActivationOffload>(bits % 7 % 2);
  o.recompute = static_cast<Recompute>(bits % 3);
  return o;
}

// Master and state on a disk, too, and the averages that are evaluated.
ExecutorOptions Spilled(int bits) {
  ExecutorOptions o;
  o.cpu_offload = {.params = (bits & 1) != 0, .optimizer = true, .spill = "."};
  o.cpu_offload.optimizer_share = bits & 2 ? 0.5 : 0;
  if (bits & 4) o.mixed_precision.param_dtype = DType::kBFloat16;
  o.averages = bits & 8;
  o.cpu_offload.spill_ahead = bits / 16;
  o.micro_batches = 1 + bits % 3 % 2;
  o.gradient_accumulation = bits % 5 % 2 ? Accumulation::kUnsharded : Accumulation::kSharded;
  o.limit_all_gathers = 1 + bits % 7 % 3;
  o.spill_part = bits % 3 == 0 ? 256 : 1024;
  o.activation_offload = static_cast<ActivationOffload>(bits % 4 % 3);
  return o;
}

// A world, a strategy, and the shards of a hybrid one.
using Ranks = std::tuple<int, Strategy, int>;

std::vector<Ranks> OffloadRanks() {
  return {{1, Strategy::kFullShard, 0}, {1, Strategy::kShardGradOp, 0},
          {2, Strategy::kFullShard, 0}, {2, Strategy::kShardGradOp, 0},
          {2, Strategy::kNoShard, 0},   {4, Strategy::kHybridShard, 2}};
}

std::vector<Ranks> SpillRanks(Strategy hybrid) {
  return {{1, Strategy::kFullShard, 0},
          {2, Strategy::kFullShard, 0},
          {2, Strategy::kShardGradOp, 0},
          {2, Strategy::kNoShard, 0},
          {4, hybrid, 2}};
}

void CheckOffload(const std::vector<Ranks>& worlds, int settings,
                  const std::function<ExecutorOptions(int bits)>& options) {
  Totals totals;
  for (const auto& [world, strategy, shards] : worlds) {
    for (int bits = 0; bits < settings; ++bits) {
      const uint64_t drawn = HashBytes(std::to_string(bits), static_cast<uint64_t>(world));
      if (!kUnderAsan && !IsOfThisPart(drawn)) continue;
      std::set<uint64_t> seen;
      ExecutorOptions o = options(bits);
      o.sharding_strategy = strategy;
      if (shards > 0) o.shard_size = shards;
      CheckEveryWait(o, world, seen, totals);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  std::printf("%d schedules, %d waits, %d of them pacing, %d for the step before\n",
              totals.schedules, totals.waits, totals.pacing, totals.across);
}

TEST(WaitDeletion, Offload) { CheckOffload(OffloadRanks(), 64, Offloaded); }

TEST(WaitDeletion, Spill) { CheckOffload(SpillRanks(Strategy::kHybridShard), 48, Spilled); }

// No recipe offloads activations from it: it uses memory again at once, which shows each wait.
ExecutorOptions FromACachingAllocator() {
  ExecutorOptions o;
  o.limiter = FsdpOptions::Limiter::kHost;
  o.buffers = FsdpOptions::Buffers::kCaching;
  o.limit_all_gathers = 1;
  o.forward_prefetch = true;
  o.poison = false;
  o.auto_wrap.outside = WrapPolicy::Outside::kRoot;
  return o;
}

// Activations leave, and come back to, the compute stream's memory, which it may use again at once:
// the list knows no use of that memory, so these waits are `pacing` to it. A gradient that has been
// copied gives such memory back behind the run.
TEST(WaitDeletion, ActivationsAreWaitedForWhereMemoryIsReused) {
  for (const ActivationOffload offload : {ActivationOffload::kHost, ActivationOffload::kSpill}) {
    for (const auto& [world, concat] : {std::pair{1, false}, {2, false}, {2, true}, {3, true}}) {
      ExecutorOptions o = FromACachingAllocator();
      o.activation_offload = offload;
      o.concat_gradients = concat;
      o.micro_batches = 2;
      Runner runner(SmallConfig(), o, world, {});
      const Schedule schedule = runner.Of(Mode::kTrain);
      ASSERT_EQ(runner.FirstRace(Mode::kTrain, schedule), "") << schedule.ToString();
      int waits = 0;
      for (size_t a = 0; a < schedule.actions.size(); ++a) {
        const std::string name = NameOf(schedule.actions[a]);
        if (name != "drop_activations" && name != "fetch_activations") continue;
        for (size_t w = 0; w < schedule.actions[a].waits.size(); ++w) {
          Schedule without = schedule;
          without.actions[a].waits.erase(without.actions[a].waits.begin() + w);
          EXPECT_NE(runner.FirstRace(Mode::kTrain, without), "") << "action " << a << "\n"
                                                                 << schedule.ToString();
          ++waits;
        }
      }
      EXPECT_EQ(waits, 8);  // Two segments leave, once each way, twice.
    }
  }
}

// Where a gradient is copied behind its run, the copy gives back memory that activations may come
// back to. Whether they do depends on sizes: these are some at which they did before the copy was
// waited for, and sizes and settings beside them.
TEST(WaitDeletion, ActivationsComeBackBehindCopiedGradients) {
  constexpr std::pair<int64_t, int64_t> kHiddenAndInner[] = {{16, 64}, {32, 100}, {16, 40}};
  for (const auto& [hidden, inner] : kHiddenAndInner) {
    for (int bits = 0; bits < 48; ++bits) {
      if (kUnderAsan && bits % 8 > 0) continue;
      ExecutorOptions o = FromACachingAllocator();
      o.auto_wrap.outside = WrapPolicy::Outside::kUnits;
      o.activation_offload = ActivationOffload::kHost;
      o.concat_gradients = true;
      o.micro_batches = 1 + bits % 2;
      o.recompute = static_cast<Recompute>(bits / 2 % 3);
      if (bits / 6 % 2 > 0) o.gradient_accumulation = Accumulation::kUnsharded;
      if (bits / 12 % 2 > 0) o.sharding_strategy = Strategy::kShardGradOp;
      if (bits / 24 % 2 > 0) o.mixed_precision.param_dtype = DType::kFloat16;
      Gpt2Config config = SmallConfig();
      config.hidden_size = hidden;
      config.intermediate_size = inner;
      Runner runner(config, o, /*world=*/3, {});
      const Schedule schedule = runner.Of(Mode::kTrain);
      ASSERT_EQ(runner.FirstRace(Mode::kTrain, schedule), "")
          << hidden << " " << inner << " " << bits << "\n"
          << schedule.ToString();
    }
  }
}

ExecutorOptions Factored() {
  OptimizerOptions adafactor;
  adafactor.kind = OptimizerKind::kAdafactor;
  ExecutorOptions o;
  o.whole = WholeRuleOf(adafactor);
  o.factored = true;
  return o;
}

// A snapshot lies behind all updates, and before the next, on the host as on the device.
TEST(Snapshot, RacesWithNoUpdate) {
  for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
    for (const double share : {0.0, 0.5, 1.0}) {
      for (const bool spill : {false, true}) {
        ExecutorOptions o;
        o.cpu_offload = {.optimizer = share < 1, .optimizer_share = share < 1 ? share : 0};
        if (spill) o.cpu_offload.spill = ".";
        Runner runner(SmallConfig(), o, /*world=*/2, {}, device);
        runner.TakeSnapshots();
        EXPECT_EQ(runner.FirstRace(Mode::kTrain, runner.Of(Mode::kTrain)), "") << share << spill;
      }
    }
  }
  OptimizerOptions muon;
  muon.kind = OptimizerKind::kMuon;
  ExecutorOptions o;
  o.whole = WholeRuleOf(muon);
  for (ExecutorOptions& of : std::vector<ExecutorOptions>{o, Factored()}) {
    for (int place = 0; place < (of.factored ? 2 : 3); ++place) {
      of.cpu_offload.optimizer = place > 0;
      if (place == 2) of.cpu_offload.spill = ".";
      Runner runner(SmallConfig(), of, /*world=*/2, {});
      runner.TakeSnapshots();
      EXPECT_EQ(runner.FirstRace(Mode::kTrain, runner.Of(Mode::kTrain)), "")
          << of.factored << place;
    }
  }
}

// The workspaces and the host's copies of a GPU.
TEST(WaitDeletion, MemoryOfAGpu) {
  Totals totals;
  for (const int world : {1, 2}) {
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      for (const DType param : {DType::kFloat32, DType::kFloat16}) {
        std::set<uint64_t> seen;
        ExecutorOptions o;
        o.sharding_strategy = strategy;
        o.mixed_precision.param_dtype = param;
        o.micro_batches = 2;
        CheckEveryWait(o, world, seen, totals, {}, DeviceType::kCuda);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GE(totals.schedules, kUnderAsan ? 0 : 8);
}

// Its embedding is a unit of its own.
LlamaConfig UntiedConfig() {
  LlamaConfig config;
  config.hidden_size = config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 3;
  config.head_dim = 4;
  config.vocab_size = 16;
  config.max_position_embeddings = 4;
  config.tie_word_embeddings = false;
  return config;
}

// Pieces, owned matrices and results of three units, in as many slots, on two streams; on five with
// updates on the host, on seven with state on a disk.
TEST(WaitDeletion, MatricesThatAreUpdatedWhole) {
  OptimizerOptions muon;
  muon.kind = OptimizerKind::kMuon;
  Totals totals;
  std::set<uint64_t> seen;
  for (const int world : {1, 2, 4}) {
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kNoShard, Strategy::kHybridShard}) {
      // The last of four shards has none of so few elements.
      if ((world == 4) != IsHybrid(strategy)) continue;
      for (const auto& [communicators, on_host, spill] :
           {std::tuple(1, false, false), {2, false, false}, {2, true, false}, {2, true, true}}) {
        ExecutorOptions o;
        o.whole = WholeRuleOf(muon);
        o.sharding_strategy = strategy;
        if (IsHybrid(strategy)) o.shard_size = 2;
        o.communicators = communicators;
        o.cpu_offload.optimizer = on_host;
        if (spill) o.cpu_offload.spill = ".";
        if (spill) o.spill_part = 256;
        Runner runner(SmallConfig(), o, world, {});
        const Schedule schedule = runner.Of(Mode::kTrain);
        ++totals.schedules;
        ASSERT_EQ(runner.FirstRace(Mode::kTrain, schedule), "") << schedule.ToString();
        LeaveOutWaits(runner, Mode::kTrain, schedule, totals);
        if (HasFatalFailure()) return;
      }
    }
  }
  // The first action of an update makes pieces.
  ExecutorOptions o;
  o.whole = WholeRuleOf(muon);
  o.cpu_offload.optimizer = true;
  o.auto_wrap.outside = WrapPolicy::Outside::kUnits;
  Runner runner(UntiedConfig(), o, /*world=*/3, {{"*embed_tokens*", {}, 1, true}});
  EXPECT_EQ(runner.FirstRace(Mode::kTrain, runner.Of(Mode::kTrain)), "");
  std::printf("%d schedules, %d waits\n", totals.schedules, totals.waits);
}

// Sums of all units travel twice between passes over them.
TEST(WaitDeletion, FactoredMoments) {
  Totals totals;
  for (const auto& [world, strategy] : {std::pair(1, Strategy::kFullShard),
                                        {2, Strategy::kFullShard},
                                        {2, Strategy::kNoShard},
                                        {4, Strategy::kHybridShard}}) {
    for (const auto& [communicators, on_host] : {std::pair(1, false), {2, false}, {2, true}}) {
      ExecutorOptions o = Factored();
      o.sharding_strategy = strategy;
      if (IsHybrid(strategy)) o.shard_size = 2;
      o.communicators = communicators;
      o.cpu_offload.optimizer = on_host;
      Runner runner(SmallConfig(), o, world, {});
      const Schedule schedule = runner.Of(Mode::kTrain);
      ++totals.schedules;
      ASSERT_EQ(runner.FirstRace(Mode::kTrain, schedule), "") << schedule.ToString();
      LeaveOutWaits(runner, Mode::kTrain, schedule, totals);
      if (HasFatalFailure()) return;
    }
  }
  // A forward pass that begins with frozen weights waits for no update.
  ExecutorOptions o = Factored();
  o.cpu_offload.optimizer = true;
  o.auto_wrap.outside = WrapPolicy::Outside::kUnits;
  Runner runner(UntiedConfig(), o, /*world=*/3,
                {{"*embed_tokens*", {}, 1, true}, {"*layers*", {}, 1, true}});
  EXPECT_EQ(runner.FirstRace(Mode::kTrain, runner.Of(Mode::kTrain)), "");
  std::printf("%d schedules, %d waits\n", totals.schedules, totals.waits);
}

// Parts of units, whole units, and all before the last block.
TEST(WaitDeletion, FrozenParameters) {
  const auto frozen = [](const char* match) { return ParameterGroup{match, {}, 1, true}; };
  const std::vector<std::vector<ParameterGroup>> cases = {
      {frozen("*.bias")},
      {frozen("*.h.1.*")},
      {frozen("*wpe*"), frozen("*wte*"), frozen("*.h.0.*")},
      {frozen("*wpe*"), frozen("*.h.[01].*"), frozen("*ln_f*")},
      {{"*.h.1.ln_1.weight", {}, 1, false}, frozen("*")},
  };
  Totals totals;
  for (const std::vector<ParameterGroup>& groups : cases) {
    const Layout layout = Runner(SmallConfig(), {}, 2, groups).layout();
    EXPECT_EQ(std::ranges::any_of(layout.flat_parameters, &FlatParameter::HasRecords),
              groups[0].match != "*.bias");
    std::set<uint64_t> seen;
    for (int bits = 0; bits < 128; ++bits) {
      ExecutorOptions o;
      o.sharding_strategy = bits & 1 ? Strategy::kShardGradOp : Strategy::kFullShard;
      o.recompute = bits & 2 ? Recompute::kFull : Recompute::kNone;
      o.limit_all_gathers = bits & 4 ? 1 : 2;
      o.communicators = bits & 8 ? 1 : 2;
      o.micro_batches = bits & 16 ? 3 : 1;
      o.gradient_accumulation = bits & 32 ? Accumulation::kUnsharded : Accumulation::kSharded;
      o.poison = bits & 64;
      o.backward_prefetch = static_cast<BackwardPrefetch>(bits % 3);
      o.reduce_buffers = 1 + bits % 5 % 2;
      CheckEveryWait(o, 2, seen, totals, groups);
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%d schedules, %d waits\n", totals.schedules, totals.waits);
}

// A model of odd sizes and the settings of a run of it.
struct Drawn {
  ModelShape shape = SmallConfig();
  ExecutorOptions options;
  int world = 1;
  std::vector<ParameterGroup> groups;
};

Drawn Draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const auto coin = [&] { return below(2) == 1; };
  Drawn drawn;
  if (coin()) {
    Gpt2Config config = SmallConfig();
    config.num_hidden_layers = 1 + below(4);
    config.intermediate_size = 4 + below(20);
    config.vocab_size = 11 + below(30);
    drawn.shape = config;
  } else {
    LlamaConfig config;
    config.hidden_size = 12;
    config.intermediate_size = 4 + below(20);
    config.num_hidden_layers = 1 + below(4);
    config.num_attention_heads = 6;
    config.num_key_value_heads = coin() ? 3 : 6;
    config.head_dim = 2 + 2 * below(3);
    config.vocab_size = 11 + below(30);
    config.max_position_embeddings = 4;
    config.tie_word_embeddings = coin();
    config.attention_bias = coin();
    config.qk_norm = coin();
    drawn.shape = config;
  }
  const bool gpt2 = FamilyOf(drawn.shape) == "gpt2";
  constexpr const char* kParts[2][4] = {{"*norm*", "*.layers.0.*", "*embed*", "*_proj*"},
                                        {"*.bias", "*.h.0.*", "*wpe*", "*ln_*"}};
  if (coin()) drawn.groups.push_back({kParts[gpt2][below(4)], {}, 1, true});

  ExecutorOptions& o = drawn.options;
  constexpr int kWorlds[] = {1, 2, 3, 4, 6, 8};
  drawn.world = kWorlds[below(6)];
  o.sharding_strategy = static_cast<Strategy>(below(5));
  const auto divisor_of = [&](int n) {
    int d = 1 + below(n);
    while (n % d != 0) ++d;
    return d;
  };
  int shards = drawn.world;
  if (IsHybrid(o.sharding_strategy)) o.shard_size = shards = divisor_of(drawn.world);
  const bool freed =
      o.sharding_strategy == Strategy::kFullShard || o.sharding_strategy == Strategy::kHybridShard;
  if (freed && coin()) o.reshard_after_forward = divisor_of(shards);
  o.backward_prefetch = static_cast<BackwardPrefetch>(below(3));
  o.forward_prefetch = coin();
  o.limit_all_gathers = below(4);
  o.reduce_buffers = 1 + below(3);
  o.communicators = 1 + below(2);
  o.gradient_accumulation = coin() ? Accumulation::kSharded : Accumulation::kUnsharded;
  o.recompute = static_cast<Recompute>(below(3));
  o.micro_batches = 1 + below(3);
  o.poison = coin();
  o.max_norm = static_cast<float>(below(2));

  FsdpOptions::MixedPrecision& mixed = o.mixed_precision;
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  mixed.param_dtype = kDTypes[below(3)];
  if (coin()) mixed.grad_dtype = mixed.param_dtype;
  if (coin()) mixed.reduce_dtype = mixed.param_dtype;
  if (mixed.param_dtype == DType::kBFloat16 && coin()) mixed.master_dtype = DType::kBFloat16;
  if (coin()) mixed.cast = FsdpOptions::MixedPrecision::CastIn::kGather;
  if (coin()) mixed.keep_fp32 = {"*norm*", "*ln_*"};
  o.cpu_offload.optimizer = coin();
  o.cpu_offload.params = o.cpu_offload.optimizer && coin();
  o.cpu_offload.optimizer_share = below(3) / 2.0;
  if (o.cpu_offload.optimizer && coin()) o.cpu_offload.spill = ".";
  o.cpu_offload.spill_ahead = below(4);
  if (coin()) o.spill_part = 256;
  o.activation_offload = static_cast<ActivationOffload>(below(3));
  if (o.activation_offload == ActivationOffload::kSpill) o.cpu_offload.spill = ".";
  o.limiter = static_cast<FsdpOptions::Limiter>(below(2));
  if (o.limiter == FsdpOptions::Limiter::kHost && !o.cpu_offload.optimizer && coin()) {
    o.buffers = FsdpOptions::Buffers::kCaching;
  }
  o.quantize = {.gather = static_cast<FsdpOptions::Quantize::Gather>(below(3)),
                .reduce = static_cast<FsdpOptions::Quantize::Reduce>(below(3)),
                .min_size = 1 + 64 * below(2)};
  if (o.sharding_strategy != Strategy::kNoShard && coin()) o.inside = divisor_of(shards);
  o.auto_wrap.outside = static_cast<WrapPolicy::Outside>(below(2));
  return drawn;
}

TEST(WaitDeletion, RandomModelsAndSettings) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    if (!IsOfThisPart(seed)) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Drawn drawn = Draw(seed);
    Runner runner(drawn.shape, drawn.options, drawn.world, drawn.groups);
    for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
      const Schedule schedule = runner.Of(mode);
      ++totals.schedules;
      ASSERT_EQ(runner.FirstRace(mode, schedule), "") << schedule.ToString();
      LeaveOutWaits(runner, mode, schedule, totals);
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%d schedules, %d waits, %d of them pacing, %d for the step before\n",
              totals.schedules, totals.waits, totals.pacing, totals.across);
  EXPECT_GT(totals.across, 0);
}

}  // namespace
}  // namespace fsdp
