#include "trainer/simulate/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/everything.h"
#include "trainer/core/errors.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/candidates.h"
#include "trainer/simulate/search_process.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

constexpr char kRecipe[] =
    "run: {threads: 1}\n"
    "model: {family: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,\n"
    "  num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16, vocab_size: 67,\n"
    "  max_position_embeddings: 16}\n"
    "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
    "train: {micro_batch_size: 2, global_batch_size: 8}\n";

struct Job {
  Strings overrides = {};
  Hardware hardware = {};
  int world = 2, local_world = 2;

  LoadWith Loader() const {
    return [own = overrides](const Strings& more) {
      Strings all = own;
      all.insert(all.end(), more.begin(), more.end());
      return ParseRecipe({{"test.yaml", kRecipe}}, all);
    };
  }
  SearchResult Search(const SearchOptions& options = {}) const {
    return fsdp::Search(Loader(), world, local_world, hardware, options);
  }
  ResolvedRun Resolved(const Strings& more = {}) const {
    const Recipe recipe = Loader()(more);
    return Resolve(recipe, PlaceToPlan(recipe, world, local_world, hardware));
  }
};

// Kernels, links and the host take times of one size in a step of that recipe.
Hardware Cluster() {
  Hardware hardware;
  hardware.name = "a cluster";
  hardware.memory = int64_t{64} << 30;
  hardware.host_memory = int64_t{64} << 30;
  hardware.bf16_flops = 2e11;
  hardware.fp32_flops = 1e11;
  hardware.product_share = 0.8;
  hardware.attention_forward_flops = hardware.attention_backward_flops = 1e11;
  hardware.copy_bytes_per_s = 2e10;
  hardware.launch_s = 2e-6;
  hardware.kernels_beside_collectives = 0.75;
  hardware.collectives_beside_kernels = 0.875;
  hardware.host.operation_s = 1e-6;
  hardware.host.event_s = 2e-7;
  hardware.host.wait_s = 3e-7;
  NetworkRates network;
  network.ranks_per_host = 2;
  network.collective_s = 5e-6;
  network.inside.ring_bytes_per_s = 4e9;
  network.inside.ring_step_s = 3e-6;
  network.inside.ramp_bytes = 1000;
  network.between.ring_bytes_per_s = 2e9;
  network.between.ring_step_s = 1e-5;
  network.between.ramp_bytes = 2000;
  hardware.network = network;
  return hardware;
}

Hardware TwoCores() {
  Hardware hardware = Cluster();
  hardware.device = Hardware::Device::kCpu;
  hardware.cores = 2;
  hardware.launch_s = 0;
  return hardware;
}

Job RandomJob(std::mt19937_64& random) {
  const auto pick = [&](const Strings& values) { return values[random() % values.size()]; };
  const auto times = [&](double number) {
    return number * std::exp2(static_cast<double>(random() % 600) / 100 - 3);
  };
  Job job;
  job.hardware = random() % 2 == 0 ? Cluster() : TwoCores();
  Hardware& hardware = job.hardware;
  job.world = 1 << random() % 3;
  job.local_world = std::min(job.world, 2);
  hardware.copy_bytes_per_s = times(2e10);
  hardware.launch_s = times(hardware.launch_s);
  hardware.fp32_flops = times(1e11);
  hardware.host.operation_s = times(1e-6);
  hardware.network->inside.ring_bytes_per_s = times(4e9);
  hardware.network->between.ring_bytes_per_s = times(2e9);
  if (random() % 4 == 0 && hardware.device == Hardware::Device::kCuda && job.world < 4) {
    hardware.host_link_bytes_per_s = times(1e9);
    hardware.host_copy_bytes_per_s = times(4e9);
  }
  job.overrides = {"fsdp.sharding_strategy=" + pick({"full_shard", "shard_grad_op", "no_shard"}),
                   "train.activation_checkpointing=" + pick({"none", "full", "selective"}),
                   "train.global_batch_size=" + std::to_string(job.world * (1 + random() % 8)),
                   "train.micro_batch_size=1"};
  // The limit is as much of the recipe's own memory as lets some candidates fit, but not all.
  const int64_t planned = job.Resolved().plan.planned();
  if (random() % 2 == 0) {
    const double share = 0.7 + static_cast<double>(random() % 60) / 100;
    job.overrides.push_back("run.memory_limit=" +
                            std::to_string(std::llround(share * static_cast<double>(planned))));
  }
  return job;
}

std::string Found(const Job& job, bool cut, size_t* timed = nullptr) {
  try {
    const SearchResult result = job.Search({.best = 4, .cut = cut});
    if (timed != nullptr) *timed += result.timed;
    std::string text;
    for (const Proposal& one : result.best) {
      for (const std::string& override : one.overrides) text += override + " ";
      text += std::to_string(one.estimate.step_time_s * 1e6) + " us\n";
    }
    return text;
  } catch (const MemoryError& error) {
    return error.what();
  }
}

TEST(Search, FindsWhatASearchOfAllFinds) {
  std::mt19937_64 random(31 + testing::Part(180));
  const int jobs = testing::Everything() ? 200 : 2;
  size_t cut = 0, all = 0;
  for (int i = 0; i < jobs; ++i) {
    const Job job = RandomJob(random);
    SCOPED_TRACE("job " + std::to_string(i) + ": " + ::testing::PrintToString(job.overrides));
    EXPECT_EQ(Found(job, /*cut=*/true, &cut), Found(job, /*cut=*/false, &all));
  }
  EXPECT_LT(cut, all);  // The bounds are good for something.
}

TEST(Search, HasABoundThatNoStepIsBelow) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 30; ++i) {
    const Job job = RandomJob(random);
    SCOPED_TRACE(::testing::PrintToString(job.overrides));
    ResolvedRun run = job.Resolved();
    const double bound = StepBound(run, job.hardware);
    EXPECT_GT(bound, 0);
    EXPECT_LE(bound * (1 - 1e-9), Simulate(run, job.hardware).step_s);
  }
}

TEST(Search, ProposesSettingsThatLoadAndTakeWhatItSays) {
  const Job job{.hardware = Cluster(), .world = 4};
  const SearchResult result = job.Search();
  ASSERT_EQ(result.best.size(), 10u);
  for (const Proposal& one : result.best) {
    ResolvedRun run = job.Resolved(one.overrides);
    EXPECT_EQ(run.plan.planned(), one.plan.planned());
    EXPECT_TRUE(run.plan.fits());
    EXPECT_EQ(Simulate(run, job.hardware).step_s, one.estimate.step_time_s);
  }
  // Nothing is lost on the way.
  size_t all = result.best.size();
  for (const Loser& loser : result.lost) all += loser.count;
  EXPECT_EQ(all, result.candidates);
}

TEST(Search, TriesTheRecipeItselfFirstAndEachOnce) {
  const Job job{.hardware = Cluster(), .world = 4};
  const std::vector<Candidate> all = CandidatesOf(
      {.recipe = job.Loader()({}), .world = 4, .local_world = 2, .hardware = job.hardware});
  EXPECT_THAT(all.front().overrides, IsEmpty());
  EXPECT_EQ(all.front().group, 0u);
  std::set<Strings> different;
  for (const Candidate& one : all) different.insert(one.overrides);
  EXPECT_EQ(different.size(), all.size());
}

// Candidates of a group have one bound.
TEST(Search, GroupsDoTheSame) {
  const Job job{.hardware = Cluster(), .world = 4};
  std::map<size_t, double> bounds;
  const std::vector<Candidate> all = CandidatesOf(
      {.recipe = job.Loader()({}), .world = 4, .local_world = 2, .hardware = job.hardware});
  for (size_t i = 0; i < all.size(); i += 7) {
    ResolvedRun run = job.Resolved(all[i].overrides);
    const double bound = StepBound(run, job.hardware);
    EXPECT_NEAR(bounds.try_emplace(all[i].group, bound).first->second, bound, 1e-9 * bound)
        << ::testing::PrintToString(all[i].overrides);
  }
}

TEST(Search, KeepsTheMicroBatchOfAModelThatNormalizesOverIt) {
  const Job job{.hardware = Cluster()};
  SearchSpace space{
      .recipe = job.Loader()({}), .world = 2, .local_world = 2, .hardware = job.hardware};
  const auto sizes = [&] {
    std::set<std::string> found;
    for (const Candidate& one : CandidatesOf(space)) {
      for (const std::string& override : one.overrides) {
        if (override.starts_with("train.micro_batch_size")) found.insert(override);
      }
    }
    return found.size();
  };
  EXPECT_EQ(sizes(), 2u);  // 1 and 4, beside its own 2.
  space.normalizes = true;
  EXPECT_EQ(sizes(), 0u);
}

TEST(Search, EndsWithItsBudgetAndSaysSo) {
  const Job job{.hardware = Cluster(), .world = 4};
  const SearchResult result = job.Search({.budget_s = 0});
  EXPECT_FALSE(result.all);
  ASSERT_EQ(result.best.size(), 1u);  // The recipe itself.
  EXPECT_THAT(result.best[0].overrides, IsEmpty());
  EXPECT_EQ(result.lost[static_cast<size_t>(LostBy::kNotTried)].count, result.candidates - 1);
  EXPECT_THAT(SearchToText(result, 4, job.hardware), HasSubstr("the budget was spent"));
  EXPECT_TRUE(job.Search().all);
}

// A search on a clock that counts what it loads: each candidate that it looks at takes a second, or
// some random ones.
struct Clocked {
  double now = 0;
  size_t loads = 0, late = 0;  // late: begun when the budget was spent.
  std::optional<SearchResult> result = std::nullopt;
  std::string error;

  Clocked(const Job& job, double budget_s, uint64_t seed) {
    std::mt19937_64 random(seed);
    const LoadWith load = [&, loader = job.Loader()](const Strings& overrides) {
      ++loads;
      if (now >= budget_s) ++late;
      now += seed == 0 ? 1 : static_cast<double>(random() % 8);
      return loader(overrides);
    };
    SearchOptions options{.budget_s = budget_s};
    options.clock = [&] { return now; };
    try {
      result = fsdp::Search(load, job.world, job.local_world, job.hardware, options);
    } catch (const MemoryError& none_fits) {
      error = none_fits.what();
    }
  }
};

// Once the budget is spent a search begins one candidate more at most: the first that it shows.
TEST(Search, BeginsNoMoreOnceItsBudgetIsSpent) {
  // All fit; those that take no more than the recipe do; none does. Steps of many micro-batches are
  // simulated whole at the end.
  Job all{.overrides = {"train.global_batch_size=48"}, .hardware = Cluster(), .world = 4};
  Job some = all, none = all;
  const int64_t planned = all.Resolved().plan.planned();
  some.overrides.push_back("run.memory_limit=" + std::to_string(planned));
  none.overrides.emplace_back("run.memory_limit=1000");
  const struct {
    Job job;
    bool fits;
    std::vector<double> budgets_s;
  } cases[] = {{all, true, {20, 60, 200}}, {some, true, {20, 200}}, {none, false, {20, 200}}};
  size_t ended_early = 0, shown = 0;
  for (const auto& [job, fits, budgets_s] : cases) {
    for (const double budget_s : budgets_s) {
      for (const uint64_t seed : {0, 1}) {
        const Clocked search(job, budget_s, seed);
        EXPECT_LE(search.late, 1u) << budget_s << ", seed " << seed << ", " << search.error;
        EXPECT_GT(search.loads, 3u);
        ASSERT_EQ(search.result.has_value(), fits) << budget_s << ": " << search.error;
        if (!fits) {
          EXPECT_THAT(search.error, HasSubstr("The least that was found is "));
          continue;
        }
        const SearchResult& found = *search.result;
        size_t lost = 0;
        for (const Loser& loser : found.lost) lost += loser.count;
        EXPECT_EQ(lost + found.best.size(), found.candidates) << budget_s << ", seed " << seed;
        shown += found.best.size();
        ended_early += !found.all;
      }
    }
  }
  EXPECT_GE(ended_early, 4u);
  EXPECT_GT(shown, 2 * ended_early);
}

TEST(Search, SaysWhyTheOthersLost) {
  Job job{.overrides = {"train.activation_checkpointing=full", "train.global_batch_size=2",
                        "train.micro_batch_size=1"},
          .hardware = Cluster()};
  job.hardware.host_link_bytes_per_s = 1e9;
  job.hardware.host_copy_bytes_per_s = 4e9;
  // A little less than what sharding nothing takes.
  const int64_t room = job.Resolved({"fsdp.sharding_strategy=no_shard"}).plan.planned() - 1;
  job.overrides.push_back("run.memory_limit=" + std::to_string(room));
  const SearchResult result = job.Search({.cut = false});
  const auto lost = [&](LostBy by) { return result.lost[static_cast<size_t>(by)]; };
  EXPECT_GT(lost(LostBy::kMemory).count, 0u);
  EXPECT_GT(lost(LostBy::kMemory).bytes, lost(LostBy::kMemory).room);
  EXPECT_EQ(lost(LostBy::kMemory).room, room);
  for (const LostBy by : {LostBy::kRecomputation, LostBy::kCommunication, LostBy::kOffload}) {
    EXPECT_GT(lost(by).count, 0u) << static_cast<int>(by);
    EXPECT_GT(lost(by).seconds, 0) << static_cast<int>(by);
    EXPECT_GE(lost(by).step_s, result.best.back().estimate.step_time_s * (1 - 1e-9));
  }
  EXPECT_THAT(SearchToJson(result, 2, 2), HasSubstr("\"reason\": \"recomputation\""));
}

TEST(Search, SaysHowMuchTheSmallestTakesWhereNoneFits) {
  const Job job{.overrides = {"run.memory_limit=1000"}, .hardware = Cluster(), .world = 4};
  try {
    job.Search();
    FAIL();
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not fit: none of "));
    EXPECT_THAT(error.what(), HasSubstr("The least that was found is "));
    EXPECT_THAT(error.what(), HasSubstr("where 1000 B are free, with --set "));
  }
}

TEST(Search, FindsWhatFitsWhereTheRecipeDoesNot) {
  Job job{.hardware = Cluster(), .world = 4};
  const int64_t all = job.Resolved().plan.planned();
  job.overrides.push_back("run.memory_limit=" + std::to_string(all - 1));
  const SearchResult result = job.Search();
  EXPECT_FALSE(result.own_s);
  ASSERT_FALSE(result.best.empty());
  for (const Proposal& one : result.best) EXPECT_LT(one.plan.planned(), all);
}

TEST(Search, RefusesWhatTheRecipeItselfHasWrong) {
  Job job{.overrides = {"fsdp.sharding_strategy=hybrid_shard", "fsdp.shard_size=3"},
          .hardware = Cluster(),
          .world = 4};
  EXPECT_THROW(job.Search(), ConfigError);
  job = {.hardware = Cluster()};
  job.hardware.copy_bytes_per_s.reset();
  EXPECT_THROW(job.Search(), ConfigError);
}

}  // namespace
}  // namespace fsdp
