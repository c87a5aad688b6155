#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/core/terminal.h"
#include "trainer/engine/plan.h"
#include "trainer/launch/environment.h"
#include "trainer/loop/plan_heading.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/hardware.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/network.h"
#include "trainer/simulate/search_process.h"
#include "trainer/simulate/simulate.h"
#include "trainer/simulate/sweep.h"

namespace fsdp {
namespace {

struct MachineFlags {
  RecipeFlags recipe;
  int world = 1;
  std::optional<int> local_world;
  std::string hardware;
  bool json = false;
  double expert_load = 0;  // 0: not given, which is 1.

  Recipe Load(int local) const {
    return Checked(
        LoadRecipe(recipe, [&](const Recipe& read) { return WorldConflicts(read, world, local); }));
  }
  Recipe Checked(Recipe read) const {
    if (expert_load != 0) CheckExpertLoad(ShapeFor(read), expert_load);
    return read;
  }
  double ExpertLoad() const { return expert_load == 0 ? 1 : expert_load; }
};

Flag ExpertLoadFlag(double* load) {
  return {
      "--expert-load", load,
      "The tokens of the busiest expert of each layer, over their mean; all other experts share "
      "the rest evenly. At most experts / experts a token",
      FlagRules{.value = "F",
                .range = {1, std::numeric_limits<double>::max()},
                .default_text = "1",
                .needs = "--hardware"}};
}

Command MachineCommand(const char* name, const char* about, MachineFlags& flags) {
  Command command{name, about};
  command.flags = {
      ConfigFlag(&flags.recipe.files),
      SetFlag(&flags.recipe.overrides),
      {"--world-size", &flags.world, "Ranks of the job",
       FlagRules{.range = {1, kMostRanks}, .required = true}},
      {"--local-world-size", &flags.local_world,
       "Ranks of a host, a divisor of --world-size. Default: the hardware file's, otherwise all "
       "of them",
       FlagRules{.range = {1, kMostRanks}}},
  };
  command.footer = PlanTerms() + EstimateTerms();
  return command;
}

Collective CallNamed(const std::string& name) {
  for (int kind = 0; kind < kCollectives; ++kind) {
    if (name == Name(static_cast<Collective>(kind))) return static_cast<Collective>(kind);
  }
  throw ConfigError("--call " + name + ": is no collective");
}

}  // namespace

Command PlanCommand() {
  struct Flags : MachineFlags {
    bool search = false;
    double budget_s = std::numeric_limits<double>::infinity();
  };
  const auto flags = std::make_shared<Flags>();
  Command command =
      MachineCommand("plan", "Show a recipe's memory, traffic and time without running it", *flags);
  command.flags.insert(
      command.flags.end(),
      {{"--hardware", &flags->hardware,
        "A file that describes the machine, such as those of configs/hardware. Default: this "
        "machine",
        FlagRules{.value = "FILE"}},
       ExpertLoadFlag(&flags->expert_load),
       {"--json", &flags->json, "One JSON object"},
       {"--search", &flags->search,
        "Find the settings of sharding, micro-batches, recomputation, offload and prefetch with "
        "the shortest step. Results change by rounding alone",
        FlagRules{.needs = "--hardware"}},
       {"--budget", &flags->budget_s, "Most seconds of the search",
        FlagRules{.value = "S", .range = kAboveZero, .needs = "--search"}}});
  command.run = [flags] {
    ProgressLine line("reading the recipe");
    std::optional<Hardware> hardware;
    if (!flags->hardware.empty()) hardware = ReadHardware(flags->hardware);
    const int local_world = LocalWorldFor(flags->world, flags->local_world, hardware);
    if (flags->search) {
      const LoadWith load = RecipeLoader(flags->recipe);
      flags->Checked(load({}));
      return SearchProcess(load, flags->world, local_world, *hardware, flags->budget_s,
                           flags->ExpertLoad(), flags->json, line);
    }
    return PlanOnHardware(flags->Load(local_world), flags->world, local_world, hardware,
                          flags->ExpertLoad(), flags->json, line);
  };
  return command;
}

Command SimulateCommand() {
  struct Flags : MachineFlags {
    SimulateOptions options;
    std::vector<std::string> sweep;
    std::string out;
  };
  const auto flags = std::make_shared<Flags>();
  Command command =
      MachineCommand("simulate", "Simulate a recipe's steps on a described cluster", *flags);
  command.flags.insert(
      command.flags.end(),
      {{"--hardware", &flags->hardware,
        "A file that describes the machine, such as those of configs/hardware",
        FlagRules{.value = "FILE", .required = true}},
       ExpertLoadFlag(&flags->expert_load),
       {"--json", &flags->json, "One JSON object"},
       {"--steps", &flags->options.steps, "Steps to simulate; the last one is shown",
        FlagRules{.range = {1, 1000}}},
       {"--slowest", &flags->options.slowest,
        "One rank computes this many times slower, and the others wait for it",
        FlagRules{.range = {1, 1e6}}},
       {"--sweep", &flags->sweep,
        "Simulate each of these values of a recipe's key or of world_size; with several --sweep, "
        "all combinations",
        FlagRules{.value = "KEY=V1,V2", .one_each = true}},
       {"--out", &flags->out,
        "Write simulate.json and the step's trace there; for a sweep, sweep.csv, sweep.json and "
        "sweep.html",
        FlagRules{.value = "DIR"}}});
  command.run = [flags] {
    const Hardware hardware = ReadHardware(flags->hardware);
    if (!flags->sweep.empty()) {
      const auto recipe = [&](const std::vector<std::string>& settings) {
        RecipeFlags one = flags->recipe;
        one.overrides.insert(one.overrides.end(), settings.begin(), settings.end());
        return flags->Checked(LoadRecipe(one));
      };
      SimulateSweep({SweptKeys(flags->sweep), recipe, flags->world, flags->local_world,
                     flags->ExpertLoad(), flags->options, flags->out, flags->json},
                    hardware);
      return ExitCode::kDone;
    }
    const int local_world = LocalWorldFor(flags->world, flags->local_world, hardware);
    ProgressLine line("reading the recipe");
    return SimulateProcess(flags->Load(local_world), flags->world, local_world, hardware,
                           flags->ExpertLoad(), flags->options, flags->out, flags->json, line);
  };
  return command;
}

Command CollectiveCommand() {
  struct Flags {
    std::string hardware, call = "all_gather", dtype = "fp32";
    int world = 1;
    int64_t elements = 0;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  Command command{"collective", "Price one collective on a described cluster"};
  command.hidden = true;
  command.flags = {
      {"--hardware", &flags->hardware, "A file of configs/hardware", kRequiredPath},
      {"--world-size", &flags->world, "Ranks, all of them in the call",
       FlagRules{.range = {1, kMostRanks}, .required = true}},
      {"--call", &flags->call, "all_gather, reduce_scatter, all_reduce, ..."},
      {"--elements", &flags->elements,
       "Elements of the whole tensor: of a gather's result, of a reduction's operand",
       FlagRules{.range = {1, int64_t{1} << 50}, .required = true}},
      {"--dtype", &flags->dtype, "dtype of what moves", FlagRules{.choices = kFloats}},
      {"--json", &flags->json, "One JSON object"},
  };
  command.run = [flags] {
    const Hardware hardware = ReadHardware(flags->hardware);
    const int local_world = LocalWorldFor(flags->world, std::nullopt, hardware);
    const Network network(hardware, flags->world, local_world);
    CollectiveCall call{.kind = CallNamed(flags->call), .dtype = FloatNamed(flags->dtype)};
    const bool of_parts =
        call.kind != Collective::kAllReduce && call.kind != Collective::kBroadcast;
    if (of_parts && flags->elements % flags->world != 0) {
      throw ConfigError("--elements " + std::to_string(flags->elements) +
                        ": --world-size does not divide it");
    }
    call.n = of_parts ? flags->elements / flags->world : flags->elements;
    const double seconds =
        network.WorkOf(network.ReachOf(RankGroup::World(/*rank=*/0, flags->world)), call).seconds;
    if (flags->json) {
      std::printf("%s\n", JsonObject().Add("seconds", seconds).Text().c_str());
    } else {
      std::printf("%.6g s\n", seconds);
    }
  };
  return command;
}

}  // namespace fsdp
