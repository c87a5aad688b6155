// Embedding tables through whole steps: docs/fsdp.md, "Embedding tables".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/toy_tables.h"
#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/initial_values.h"
#include "trainer/runtime/sim/sim_device.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp::testing {
namespace {

TinyRun OfTables(const ToyTables::Options& options = ToyTables::Options()) {
  TinyRun run;
  run.model = [options] { return std::make_unique<ToyTables>(options); };
  run.rows = ToyTables::Rows();
  return run;
}

void ExpectNear(const TinyResult& got, const TinyResult& want, double tolerance) {
  const auto near = [&](const std::string& of, const std::vector<float>& a,
                        const std::vector<float>& b) {
    EXPECT_TRUE(AllNear({a.begin(), a.end()}, {b.begin(), b.end()}, tolerance)) << of;
  };
  near("losses", got.losses, want.losses);
  near("norms", got.grad_norms, want.grad_norms);
  near("evaluation", {got.eval_loss}, {want.eval_loss});
  ASSERT_EQ(got.parameters.size(), want.parameters.size());
  for (const auto& [name, values] : want.parameters) near(name, got.parameters.at(name), values);
  for (const auto& [name, values] : want.state) near(name, got.state.at(name), values);
}

// Sums of a step have up to 36 terms, of numbers of order one, in three steps.
const double kNear = 3 * Tolerance(DType::kFloat32, 36);

TEST(Tables, WorldsAgreeWithOneRank) {
  const TinyResult one = Train(OfTables());
  EXPECT_NE(one.parameters.at("tables.word"), one.initial.at("tables.word"));
  for (const int world : {2, 3, 4, 5}) {
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      SCOPED_TRACE(world);
      TinyRun run = OfTables();
      run.world = world;
      run.options.executor.sharding_strategy = strategy;
      ExpectNear(Train(run), one, kNear);
    }
  }
  TinyRun run = OfTables();
  run.world = 4;
  run.options.executor.sharding_strategy = Strategy::kHybridShard;
  run.options.executor.shard_size = 2;
  run.ranks_by_position = {2, 0, 3, 1};
  ExpectNear(Train(run), one, kNear);
}

// Neither recomputation, nor who computes where, nor rounds, nor transports change a bit.
TEST(Tables, SettingsChangeNoBit) {
  TinyRun run = OfTables();
  run.world = 2;
  run.options.global_batch_size = 11;  // Three micro-batches, of which the last is not full.
  const TinyResult want = Train(run);
  const auto expect_same = [&](const std::string& what, auto change) {
    TinyRun other = run;
    change(other);
    EXPECT_EQ(FirstDifference(Train(other), want), "") << what;
  };
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    expect_same("recompute", [&](TinyRun& other) { other.options.executor.recompute = recompute; });
    TinyRun again = run;  // The stem, too; it then has a unit of its own.
    again.model = [] {
      return std::make_unique<ToyTables>(ToyTables::Options{.stem_is_block = true});
    };
    const TinyResult once = Train(again);
    again.options.executor.recompute = recompute;
    EXPECT_EQ(FirstDifference(Train(again), once), "");
  }
  expect_same("shard_grad_op", [](TinyRun& other) {
    other.options.executor.sharding_strategy = Strategy::kShardGradOp;
  });
  expect_same("one queue", [](TinyRun& other) { other.options.executor.communicators = 1; });
  expect_same("threads", [](TinyRun& other) { other.options.executor.threads = 3; });
  expect_same("processes", [](TinyRun& other) { other.ranks = RunProcessRanks; });
  expect_same("caching", [](TinyRun& other) {
    other.options.executor.buffers = FsdpOptions::Buffers::kCaching;
    other.options.executor.limiter = FsdpOptions::Limiter::kHost;
  });
  expect_same("the root held", [](TinyRun& other) {
    other.options.executor.auto_wrap.outside = WrapPolicy::Outside::kRoot;
    other.options.executor.buffers = FsdpOptions::Buffers::kCaching;
    other.options.executor.limiter = FsdpOptions::Limiter::kHost;
  });
}

// Little capacity makes more rounds, in which the same is done.
TEST(Tables, RoundsChangeNoBit) {
  std::vector<TinyResult> results;
  std::vector<int64_t> rounds;
  for (const double capacity : {1.0, 8.0}) {
    TinyRun run = OfTables({.capacity = capacity});
    run.world = 3;
    run.rows = std::make_shared<ToyIds>(/*stride=*/3);  // All of one table's are of one rank.
    run.options.global_batch_size = 24;
    run.options.executor.micro_batch_size = 4;
    std::mutex mutex;
    int64_t most = 0;
    run.on_table_rounds = [&](int, int64_t step, int64_t n) {
      const std::lock_guard lock(mutex);
      if (step > 0) most = std::max(most, n);
      EXPECT_GE(n, 1);
    };
    results.push_back(Train(run));
    rounds.push_back(most);
  }
  EXPECT_GT(rounds[0], 1);
  EXPECT_EQ(rounds[1], 1);
  EXPECT_EQ(FirstDifference(results[0], results[1]), "");
}

// Where one rank's ids need two rounds and the others' one, all make two.
TEST(Tables, TheMostRoundsOfARankAreAllRanks) {
  TinyRun run = OfTables({.capacity = 1});
  run.world = 3;
  run.steps = 6;
  run.rows = std::make_shared<ToyIds>(/*stride=*/3);
  run.options.global_batch_size = 24;
  run.options.executor.micro_batch_size = 4;
  std::mutex mutex;
  std::map<int64_t, std::set<int64_t>> rounds;  // By step.
  run.on_table_rounds = [&](int, int64_t step, int64_t n) {
    const std::lock_guard lock(mutex);
    if (step > 0) rounds[step].insert(n);
  };
  Train(run);
  EXPECT_EQ(rounds.size(), 6u);
  for (const auto& [step, of_ranks] : rounds) EXPECT_EQ(of_ranks.size(), 1u) << step;
}

// Adagrad's sums and its updates belong to one gradient, which is the loss's.
TEST(Tables, GradientsAreTheLosses) {
  TinyRun run = OfTables();
  run.steps = 1;
  run.options.executor.max_norm = 0;
  run.eval_step = 1;
  const TinyResult got = Train(run);
  const std::string name = "tables.item";
  const std::vector<float>&before = got.initial.at(name), &after = got.parameters.at(name);
  const std::vector<float>& sums = got.state.at("rows/" + name);
  for (int64_t i = 0; i < std::ssize(before); i += 5) {
    const double sum = sums[i / ToyTables::kWidth];
    const double gradient = (before[i] - after[i]) / 0.1 * (std::sqrt(sum) + 1e-8);
    run.options.lr.lr = 0;
    constexpr float kStep = 0.02f;
    double loss[2];
    for (const int side : {0, 1}) {
      run.initial_rows = [&](const EmbeddingTable& table, int64_t begin, std::span<float> values) {
        FillInitial(table, run.seed, begin, values);
        if (table.name != name || i < begin || i >= begin + std::ssize(values)) return;
        values[i - begin] += side == 0 ? -kStep : kStep;
      };
      loss[side] = Train(run).eval_loss;
    }
    // Each loss, of order one, is off by some roundings of fp32; and h^2 / 6 of a third derivative.
    EXPECT_NEAR(gradient, (loss[1] - loss[0]) / (2 * kStep), 1e-4) << i;
  }
}

// A whole step, with weights of unequal samples: nothing is clipped, and grad_norm is without.
TEST(Tables, AreNeitherClippedNorInTheNorm) {
  TinyRun run = OfTables();
  run.steps = 1;
  const TinyResult clipped = Train(run);
  run.options.executor.max_norm = 1e-4f;
  const TinyResult hard = Train(run);
  EXPECT_EQ(clipped.grad_norms, hard.grad_norms);
  EXPECT_NE(clipped.parameters.at("stem.weight"), hard.parameters.at("stem.weight"));
  EXPECT_EQ(clipped.parameters.at("tables.word"), hard.parameters.at("tables.word"));
  double squares = 0;
  for (const auto& [name, values] : hard.gradients) {
    for (const float g : values) squares += double{g} * g;
  }
  EXPECT_NEAR(hard.grad_norms[0], std::sqrt(squares), 1e-5);
}

// A loss scale that overflows skips the tables' updates as it does all others.
TEST(Tables, StayWhereTheWeightsStay) {
  TinyRun run = OfTables();
  run.world = 2;
  FsdpOptions::MixedPrecision& mixed = run.options.executor.mixed_precision;
  mixed.param_dtype = mixed.grad_dtype = mixed.reduce_dtype = DType::kFloat16;
  mixed.scaler.init_scale = 0x1p60;
  run.steps = 1;
  const TinyResult skipped = Train(run);
  EXPECT_EQ(skipped.parameters, skipped.initial);
  mixed.scaler.init_scale = 64;
  const TinyResult learned = Train(run);
  EXPECT_NE(learned.parameters.at("tables.user"), learned.initial.at("tables.user"));
  // To what the rounding of 16 bits leaves of a gradient: the scale itself is gone.
  TinyRun wide = OfTables();
  wide.steps = 1;
  const TinyResult want = Train(wide);
  double off = 0, moved = 0;
  for (size_t i = 0; i < want.parameters.at("tables.user").size(); ++i) {
    const double w = want.parameters.at("tables.user")[i];
    off += std::abs(learned.parameters.at("tables.user")[i] - w);
    moved += std::abs(want.initial.at("tables.user")[i] - w);
  }
  EXPECT_LT(off, 0.05 * moved);
}

// Where no dense gradient is infinite, one of the tables skips the step of all ranks.
TEST(Tables, AnInfiniteGradientOfRowsSkipsTheStep) {
  TinyRun run = OfTables({.init = {0, 0}, .stem = 1e25f});
  run.world = 2;
  run.steps = 1;
  run.initial = [](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, 7, begin, values);
  };
  const TinyResult result = Train(run);
  EXPECT_TRUE(std::isnan(result.losses[0]));
  EXPECT_EQ(result.parameters, result.initial);
}

TEST(Tables, Bf16RowsFollowFp32OnesAndTheirDrawsAreTheRows) {
  const TinyResult wide = Train(OfTables());
  TinyRun run = OfTables({.dtype = DType::kBFloat16});
  const TinyResult one = Train(run);
  run.world = 3;
  const TinyResult three = Train(run);
  // A few roundings to bf16 of elements below 2 or so, each up to a step away.
  const double near = 5 * Epsilon(DType::kBFloat16) * 2;
  int64_t differ = 0, all = 0;
  for (const char* name : {"tables.user", "tables.item", "tables.word"}) {
    const std::vector<float>&a = one.parameters.at(name), &b = three.parameters.at(name);
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i], wide.parameters.at(name)[i], near);
      if (a[i] != b[i]) ++differ;
      ++all;
    }
  }
  // From almost equal sums the same draws round almost all alike; other draws would a third of
  // what moves in other ways.
  EXPECT_LT(differ, all / 100);
}

// Steps of the list of `mode` on the simulated device: the first race; empty without any.
std::string FirstRace(const SessionOptions& options, int world, Mode mode,
                      const Schedule& schedule) {
  struct RaceFound : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  ToyTables model;
  const MemoryPlan plan = PlanMemory(model, options, world);
  bool found = false;  // Thrown once: what unwinds frees memory under the checker's eyes.
  const auto checker = std::make_shared<StreamChecker>([&](const StreamChecker::Race& race) {
    if (!std::exchange(found, true)) throw RaceFound(race.ToString());
  });
  try {
    SimDevice device(SimModel(), checker);
    const auto allocator = MakeAllocator(device, options.executor, plan);
    const MeshCommunicators communicators(MeshFor(options.executor, 0, world),
                                          options.executor.communicators, ConnectSim);
    Session session(device, *allocator, model, options, communicators);
    session.executor().ReplaceSchedule(mode, schedule);
    const auto load = [](int, const Batch&) {};
    for (const int step : {1, 2, 3}) {
      session.Train(step, session.FullTargets(), /*save=*/false, load, load);
      if (step > 1) session.TakeSnapshot();
    }
    session.Eval(1, load);
    session.Eval(1, load);
    session.Train(4, session.FullTargets(), /*save=*/false, load);
    session.executor().Synchronize();
  } catch (const RaceFound& race) {
    return race.what();
  }
  return "";
}

TEST(Tables, EveryWaitIsNeeded) {
  int waits = 0;
  for (int bits = 0; bits < 12; ++bits) {
    SessionOptions options = TinyRun::TinyOptions();
    options.snapshot = true;
    options.executor.micro_batches = 1 + bits % 3;
    options.executor.communicators = bits & 1 ? 1 : 2;
    options.executor.sharding_strategy = bits & 2 ? Strategy::kNoShard : Strategy::kFullShard;
    options.executor.recompute = bits & 4 ? Recompute::kSelective : Recompute::kNone;
    const int world = bits & 8 ? 1 : 2;
    for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
      const Schedule schedule =
          ScheduleFor(options.executor, ToyTables(), MeshFor(options.executor, 0, world), mode);
      ASSERT_EQ(FirstRace(options, world, mode, schedule), "") << schedule.ToString();
      for (size_t a = 0; a < schedule.actions.size(); ++a) {
        for (size_t w = 0; w < schedule.actions[a].waits.size(); ++w) {
          Schedule without = schedule;
          const Wait wait = without.actions[a].waits[w];
          const bool ours = std::string(NameOf(without.actions[a])).starts_with("table") ||
                            std::string(NameOf(without.actions[wait.action])).starts_with("table");
          if (wait.pacing || !ours) continue;
          without.actions[a].waits.erase(without.actions[a].waits.begin() +
                                         static_cast<std::ptrdiff_t>(w));
          ++waits;
          EXPECT_NE(FirstRace(options, world, mode, without), "")
              << "action " << a << " does not need its wait for " << wait.action << "\n"
              << schedule.ToString();
        }
      }
    }
  }
  EXPECT_GT(waits, 60);
}

// On a simulated device, too: ids and rows, then ids and gradients.
TEST(Tables, ExchangesAreBetweenAllRanks) {
  SessionOptions options = TinyRun::TinyOptions();
  ToyTables model;
  SimDevice device;
  PlanRecorder memory;
  const std::vector<int> ranks = {2, 0, 1};
  int exchanges = 0;
  const MeshCommunicators communicators(
      MeshFor(options.executor, /*rank=*/1, /*world=*/3, ranks), options.executor.communicators,
      ConnectSimAt([&](const Stream&, const RankGroup& group, const CollectiveCall& call) {
        EXPECT_EQ(group.ranks(), ranks);
        exchanges += call.kind == Collective::kAllToAll ? 1 : 0;
        return SimWork();
      }));
  Session session(device, memory, model, options, communicators);
  session.Train(1, session.FullTargets(), /*save=*/false, [](int, const Batch&) {});
  EXPECT_EQ(exchanges, 4);
}

// A rank's part of the tables is ceil(rows / W) rows of so many bytes, whatever the rows; and a
// plan of more than anybody has is made at once.
TEST(Tables, PlansRowsOverTheWorld) {
  for (const int world : {1, 4, 512}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SessionOptions options = TinyRun::TinyOptions();
      const auto bytes = [&](int64_t rows) {
        ToyTables model({.dtype = dtype, .words = rows});
        const MemoryPlan plan = PlanMemory(model, options, world);
        return std::pair(plan.bytes(MemoryKind::kParameters, MemoryPlace::kDevice),
                         plan.bytes(MemoryKind::kOptimizer, MemoryPlace::kDevice));
      };
      constexpr int64_t kMany = 96'000'000'000;  // 768 G elements.
      const auto few = bytes(16 * 512 - 57), many = bytes(kMany - 57);
      const int64_t more = (kMany - 16 * 512) / world;
      EXPECT_EQ(many.first - few.first, more * ToyTables::kWidth * SizeOf(dtype));
      EXPECT_EQ(many.second - few.second, more * SizeOf(DType::kFloat32));
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
