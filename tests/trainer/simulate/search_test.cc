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
#include "trainer/core/units.h"
#include "trainer/engine/plan_cures.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/candidates.h"
#include "trainer/simulate/search_process.h"
#include "trainer/simulate/short_step.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAreArray;
using Strings = std::vector<std::string>;

constexpr char kRecipe[] =
    "run: {threads: 1}\n"
    "model: {family: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,\n"
    "  num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16, vocab_size: 67,\n"
    "  max_position_embeddings: 16}\n"
    "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
    "train: {micro_batch_size: 2, global_batch_size: 8}\n";

constexpr char kImages[] =
    "run: {threads: 1}\n"
    "model: {family: regnet, image_size: 8, hidden_sizes: [8, 16], depths: [1, 1]}\n"
    "data: {train: {source: synthetic}, valid: null}\n"
    "train: {micro_batch_size: 2, global_batch_size: 8}\n";

struct Job {
  Strings overrides = {};
  Hardware hardware = {};
  int world = 2, local_world = 2;
  std::string recipe = kRecipe;

  LoadWith Loader() const {
    return [this](const Strings& more) {
      Strings all = overrides;
      all.insert(all.end(), more.begin(), more.end());
      return ParseRecipe({{"test.yaml", recipe}}, all);
    };
  }
  Candidates All(bool normalizes = false) const {
    return Candidates({.recipe = Loader()({}),
                       .world = world,
                       .local_world = local_world,
                       .hardware = hardware,
                       .normalizes = normalizes});
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
  job.world = std::vector<int>{1, 2, 2, 3, 4, 4, 6}[random() % 7];
  job.local_world = job.world % 2 == 0 ? 2 : job.world;
  hardware.copy_bytes_per_s = times(2e10);
  hardware.launch_s = times(hardware.launch_s);
  hardware.fp32_flops = times(1e11);
  hardware.host.operation_s = times(1e-6);
  hardware.network->inside.ring_bytes_per_s = times(4e9);
  hardware.network->between.ring_bytes_per_s = times(2e9);
  const bool offloads =
      random() % 4 == 0 && hardware.device == Hardware::Device::kCuda && job.world < 4;
  if (offloads) {
    hardware.host_link_bytes_per_s = times(1e9);
    hardware.host_copy_bytes_per_s = times(4e9);
  }
  if (random() % 4 == 0) hardware.host_memory = random() % 2 == 0 ? 1 << 20 : int64_t{1} << 50;
  if (random() % 8 == 0) hardware.host_memory.reset();
  job.overrides = {
      "fsdp.sharding_strategy=" + pick({"full_shard", "shard_grad_op", "no_shard"}),
      "train.activation_checkpointing=" + pick({"none", "full", "selective"}),
      "train.global_batch_size=" + std::to_string(job.world * (1 + random() % (offloads ? 2 : 8))),
      "train.micro_batch_size=1"};
  if (random() % 6 == 0) {
    job.recipe = kImages;
    job.overrides[1] = "train.activation_checkpointing=none";
    job.overrides[2] = "train.global_batch_size=" + std::to_string(job.world * 4);
    job.overrides[3] = "train.micro_batch_size=2";
  } else {
    // Units of different sizes: a table that is larger than all blocks, or smaller than one.
    const Strings own = {"model.num_hidden_layers=" + pick({"1", "2", "3"}),
                         "model.vocab_size=" + pick({"13", "67", "2000"}),
                         "model.tie_word_embeddings=" + pick({"true", "false"}),
                         "fsdp.auto_wrap.outside=" + pick({"units", "root"}),
                         "fsdp.mixed_precision.param_dtype=" + pick({"fp32", "bf16"})};
    job.overrides.insert(job.overrides.end(), own.begin(), own.end());
  }
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
    // The smallest of several that take as much is anyone.
    const std::string text = error.what();
    return text.substr(0, text.find(", with"));
  }
}

// The shortest step of all recipes, each planned and simulated by itself. Empty: none fits.
std::optional<double> ShortestOf(const Job& job, bool normalizes) {
  const Candidates all = job.All(normalizes);
  std::optional<double> shortest;
  for (size_t one = 0; one < all.size(); ++one) {
    try {
      const ResolvedRun run = job.Resolved(all.Overrides(one));
      if (!run.plan.fits()) continue;
      const double step = Simulate(run, job.hardware).step_s;
      shortest = std::min(shortest.value_or(step), step);
    } catch (const ConfigError&) {  // Its settings contradict each other.
    }
  }
  return shortest;
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

// A search is within 5 % of the best of all and says that nothing fits where nothing does. One with
// a budget says the latter only where it has seen all.
void ExpectTrueOf(const Job& job, std::mt19937_64& random) {
  const std::optional<double> shortest = ShortestOf(job, job.recipe == kImages);
  try {
    const double step = job.Search().best[0].estimate.step_time_s;
    ASSERT_TRUE(shortest);
    EXPECT_LE(step, 1.05 * *shortest);
    EXPECT_GE(step, (1 - 1e-9) * *shortest);
  } catch (const MemoryError& error) {
    EXPECT_FALSE(shortest) << error.what();
    EXPECT_THAT(error.what(), StartsWith("does not fit: none of "));
  }
  const Clocked ended(job, static_cast<double>(random() % 60), random());
  EXPECT_TRUE(shortest || !ended.result);
  EXPECT_FALSE(shortest && ended.error.find("does not fit") != std::string::npos) << ended.error;
  EXPECT_THAT(ended.error, Not(HasSubstr(" 0 B are free")));
}

TEST(Search, FindsWhatASearchOfAllFinds) {
  std::mt19937_64 random(31 + testing::Part(180));
  const int jobs = testing::Everything() ? 200 : 1;
  size_t cut = 0, all = 0;
  for (int i = 0; i < jobs; ++i) {
    const Job job = RandomJob(random);
    SCOPED_TRACE("job " + std::to_string(i) + ": " + ::testing::PrintToString(job.overrides));
    EXPECT_EQ(Found(job, /*cut=*/true, &cut), Found(job, /*cut=*/false, &all));
    ExpectTrueOf(job, random);
  }
  EXPECT_LE(cut, all);
}

TEST(Search, HasABoundThatNoStepIsBelow) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 30; ++i) {
    const Job job = RandomJob(random);
    SCOPED_TRACE(::testing::PrintToString(job.overrides));
    ResolvedRun run = job.Resolved();
    const double bound = BoundOf(run, job.hardware).least_s;
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
  // The bounds are good for something.
  EXPECT_GT(result.lost[static_cast<size_t>(LostBy::kBound)].count, 0u);
}

TEST(Search, TriesTheRecipeItselfFirstAndEachOnce) {
  const Job job{.hardware = Cluster(), .world = 4};
  const Candidates all = job.All();
  EXPECT_THAT(all.Overrides(0), IsEmpty());
  std::set<Strings> different;
  for (size_t one = 0; one < all.size(); ++one) {
    const Strings overrides = all.Overrides(one);
    different.insert(overrides);
    const size_t group = all.GroupOf(one);
    EXPECT_LE(all.FirstOf(group), one);
    EXPECT_LT(one, all.EndOf(group));
    if (one % 50 > 0) continue;
    EXPECT_EQ(all.Find({overrides.rbegin(), overrides.rend()}), one);
  }
  EXPECT_EQ(different.size(), all.size());
  EXPECT_EQ(all.EndOf(all.groups() - 1), all.size());
  EXPECT_EQ(all.Find({"train.grad_clip=1"}), std::nullopt);
  EXPECT_EQ(all.Find({"fsdp.limit_all_gathers=7"}), std::nullopt);
}

// Candidates of a group have one bound, and one of them takes the least.
TEST(Search, GroupsDoTheSame) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 6; ++i) {
    const Job job = RandomJob(random);
    SCOPED_TRACE(::testing::PrintToString(job.overrides));
    const Candidates all = job.All(job.recipe == kImages);
    const size_t group = random() % all.groups();
    ResolvedRun least = job.Resolved(all.Overrides(all.LeastOf(group)));
    const double bound = BoundOf(least, job.hardware).least_s;
    for (size_t one = all.FirstOf(group); one < all.EndOf(group); ++one) {
      ResolvedRun run = job.Resolved(all.Overrides(one));
      SCOPED_TRACE(::testing::PrintToString(all.Overrides(one)));
      EXPECT_NEAR(BoundOf(run, job.hardware).least_s, bound, 1e-9 * bound);
      EXPECT_GE(run.plan.planned(), least.plan.planned());
      EXPECT_GE(run.plan.host_planned(), least.plan.host_planned());
    }
  }
}

TEST(Search, KeepsTheMicroBatchOfAModelThatNormalizesOverIt) {
  const Job job{.hardware = Cluster()};
  const auto sizes = [&](bool normalizes) {
    std::set<std::string> found;
    const Candidates all = job.All(normalizes);
    for (size_t one = 0; one < all.size(); ++one) {
      for (const std::string& override : all.Overrides(one)) {
        if (override.starts_with("train.micro_batch_size")) found.insert(override);
      }
    }
    return found.size();
  };
  EXPECT_EQ(sizes(false), 2u);  // 1 and 4, beside its own 2.
  EXPECT_EQ(sizes(true), 0u);
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

TEST(Search, BeginsNothingThatItsBudgetDoesNotAllow) {
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
        EXPECT_EQ(search.late, 0u) << budget_s << ", seed " << seed << ", " << search.error;
        EXPECT_GT(search.loads, 3u);
        ASSERT_EQ(search.result.has_value(), fits) << budget_s << ": " << search.error;
        if (!fits) {
          EXPECT_THAT(search.error, StartsWith("no recipe that fits was found in "));
          EXPECT_THAT(search.error, HasSubstr(" were not. The least that was found is "));
          EXPECT_THAT(search.error, HasSubstr("give --budget more seconds"));
          EXPECT_THAT(search.error, Not(HasSubstr("smaller model")));
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

TEST(Search, HoldsItsBudgetOfAMillionRanks) {
  Job job{.overrides = {"train.micro_batch_size=1", "train.global_batch_size=1048576"},
          .hardware = Cluster(),
          .world = 1 << 20};
  job.hardware.host_memory.reset();
  const Clocked search(job, 12, /*seed=*/0);
  EXPECT_EQ(search.late, 0u);
  ASSERT_TRUE(search.result) << search.error;
  EXPECT_GT(search.result->timed, 2u);
}

// With settings that the search itself leaves alone, too.
TEST(Search, TriesWhatPlanNamesWhateverTheBudget) {
  const Job recipes[] = {
      {.overrides = {"train.micro_batch_size=4"}, .hardware = Cluster()},
      {.overrides = {"fsdp.sharding_strategy=hybrid_shard_grad_op", "fsdp.shard_size=2"},
       .hardware = TwoCores(),
       .world = 4},
      {.overrides = {"fsdp.auto_wrap.outside=root", "model.vocab_size=2000"},
       .hardware = Cluster()},
      {.overrides = {"fsdp.buffers=caching", "fsdp.limiter=host", "fsdp.concat_gradients=true"},
       .hardware = Cluster()},
      {.overrides = {"train.attention=math", "data.seq_len=256",
                     "model.max_position_embeddings=256"},
       .hardware = TwoCores(),
       .world = 1,
       .local_world = 1},
  };
  std::set<std::string> settings;
  for (Job job : recipes) {
    job.hardware.host_link_bytes_per_s = 1e9;
    job.hardware.host_copy_bytes_per_s = 4e9;
    const int64_t planned = job.Resolved().plan.planned();
    job.overrides.push_back("run.memory_limit=" + std::to_string(planned - 1));
    SCOPED_TRACE(::testing::PrintToString(job.overrides));
    const ResolvedRun run = job.Resolved();
    const std::vector<Cure> cures = FittingCures(*run.model, run.options, run.plan, run.target);
    ASSERT_FALSE(cures.empty());
    const SearchResult result = job.Search({.best = cures.size(), .budget_s = 0});
    for (const Cure& cure : cures) {
      settings.insert(cure.setting);
      if (cure.overrides.empty()) continue;  // A directory is missing.
      EXPECT_THAT(result.best,
                  Contains(Field(&Proposal::overrides, UnorderedElementsAreArray(cure.overrides))))
          << cure.setting;
    }
  }
  EXPECT_GE(settings.size(), 7u) << ::testing::PrintToString(settings);
}

// On a clock by which each of them takes long.
TEST(Search, EndsItsCuresWithTheBudget) {
  Job job{.overrides = {"train.micro_batch_size=4"}, .hardware = Cluster()};
  const int64_t planned = job.Resolved().plan.planned();
  job.overrides.push_back("run.memory_limit=" + std::to_string(planned - 1));
  EXPECT_FALSE(job.Search({.budget_s = 0}).best.empty());
  double now = 0;
  SearchOptions options{.budget_s = 20};
  options.clock = [&] { return now += 4; };
  try {
    job.Search(options);
    FAIL();
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), StartsWith("no recipe that fits was found in 20.0 s: "));
  }
}

// Neither is it said that nothing fits, nor is it proposed.
TEST(Search, NamesACureWhoseTimeTheFileDoesNotTell) {
  Job job{.hardware = Cluster(), .world = 1, .local_world = 1};
  job.overrides = {
      "run.memory_limit=" +
      std::to_string(job.Resolved({"fsdp.cpu_offload.optimizer=true"}).plan.planned())};
  try {
    job.Search();
    FAIL();
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("it fits with fsdp.cpu_offload.optimizer: true: "));
    EXPECT_THAT(error.what(), HasSubstr("; its time is not known: "));
    EXPECT_THAT(error.what(), HasSubstr("the hardware file of a cluster has no host_"));
    EXPECT_THAT(error.what(), Not(HasSubstr("does not fit")));
  }
}

// A model of 4 GB.
TEST(Search, HoldsHostMemoryAgainstTheFile) {
  Job job{.overrides = {"model.vocab_size=30000", "model.hidden_size=8192",
                        "model.num_attention_heads=64", "model.head_dim=128",
                        "model.intermediate_size=8192", "train.micro_batch_size=1",
                        "train.global_batch_size=2"},
          .hardware = Cluster()};
  job.hardware.host_link_bytes_per_s = 1e9;
  job.hardware.host_copy_bytes_per_s = 4e9;
  const ResolvedRun offloaded = job.Resolved({"fsdp.cpu_offload.optimizer=true"});
  job.hardware.memory = offloaded.plan.planned() + 3 * (int64_t{1} << 30);
  ASSERT_FALSE(job.Resolved().plan.fits());
  const auto searched = [&] { return job.Search({.best = 1, .budget_s = 0}); };  // The cures.
  const auto json = [&] { return SearchToJson(searched(), job.world, job.local_world); };
  EXPECT_THAT(json(), HasSubstr("\"fits_host\": true"));

  job.hardware.host_memory.reset();
  const SearchResult unknown = searched();
  const RunPlan& plan = unknown.best[0].plan;
  EXPECT_THAT(json(), HasSubstr("\"host_of_all\": " + std::to_string(2 * plan.host_planned()) +
                                ", \"fits\": true, \"fits_host\": null"));
  const std::string text = SearchToText(unknown, job.world, job.hardware);
  EXPECT_THAT(text, HasSubstr(HumanBytes(plan.host_planned())));
  EXPECT_THAT(text, HasSubstr(HumanBytes(2 * plan.host_planned()) + "  --set "));
  EXPECT_THAT(text, HasSubstr("the first fits on the device; needs "));
  EXPECT_THAT(text, HasSubstr(" a host, which the hardware file does not know\n"));

  job.hardware.host_memory = plan.host_planned() / 2;  // Each rank gets half of it.
  try {
    job.Search();
    FAIL();
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), StartsWith("does not fit: none of "));
  }
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
  EXPECT_GT(lost(LostBy::kMemory).misfit.bytes, room);
  EXPECT_EQ(lost(LostBy::kMemory).misfit.room, room);
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
