#include "cmd/simulate_command.h"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cmd/recipe_flags.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/core/dtype.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/engine/plan.h"
#include "trainer/launch/environment.h"
#include "trainer/recipe/hardware.h"
#include "trainer/simulate/network.h"
#include "trainer/simulate/search_process.h"
#include "trainer/simulate/simulate_process.h"
#include "trainer/simulate/sweep.h"

namespace fsdp {
namespace {

struct MachineFlags {
  RecipeFlags recipe;
  int world = 1;
  std::optional<int> local_world;
  std::string hardware;
  bool json = false;
};

CLI::Option* AddMachineFlags(CLI::App& command, MachineFlags& flags, bool needs_hardware) {
  AddRecipeFlags(command, flags.recipe);
  command.add_option("--world-size", flags.world, "Ranks of the job")
      ->required()
      ->check(CLI::Range(1, kMostRanks));
  command
      .add_option("--local-world-size", flags.local_world,
                  "Ranks of a host, a divisor of --world-size. Default: the hardware file's, "
                  "otherwise all of them")
      ->check(CLI::Range(1, kMostRanks));
  CLI::Option* const hardware =
      command
          .add_option(
              "--hardware", flags.hardware,
              std::string("A file that describes the machine, such as those of configs/hardware") +
                  (needs_hardware ? "" : ". Default: this machine"))
          ->type_name("FILE");
  if (needs_hardware) hardware->required();
  command.add_flag("--json", flags.json, "One JSON object");
  command.footer(PlanTerms());
  return hardware;
}

DType WireDType(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (name == Name(dtype)) return dtype;
  }
  throw ConfigError("--dtype " + name + ": want fp32, bf16 or fp16");
}

Collective CallNamed(const std::string& name) {
  for (int kind = 0; kind < kCollectives; ++kind) {
    if (name == Name(static_cast<Collective>(kind))) return static_cast<Collective>(kind);
  }
  throw ConfigError("--call " + name + ": is no collective");
}

}  // namespace

void AddPlanCommand(CLI::App& app, ExitCode& code) {
  CLI::App* const command =
      app.add_subcommand("plan", "Show a recipe's memory, traffic and time without running it");
  struct Flags : MachineFlags {
    bool search = false;
    double budget_s = std::numeric_limits<double>::infinity();
  };
  const auto flags = std::make_shared<Flags>();
  CLI::Option* const machine = AddMachineFlags(*command, *flags, /*needs_hardware=*/false);
  CLI::Option* const search =
      command
          ->add_flag("--search", flags->search,
                     "Find the settings of sharding, micro-batches, recomputation, offload and "
                     "prefetch with the shortest step. Results change by rounding alone")
          ->needs(machine);
  command->add_option("--budget", flags->budget_s, "Most seconds of the search")
      ->check(CLI::PositiveNumber)
      ->type_name("S")
      ->needs(search);
  command->callback([flags, &code] {
    std::optional<Hardware> hardware;
    if (!flags->hardware.empty()) hardware = ReadHardware(flags->hardware);
    const int local_world = LocalWorldFor(flags->world, flags->local_world, hardware);
    if (flags->search) {
      code = SearchProcess(RecipeLoader(flags->recipe), flags->world, local_world, *hardware,
                           flags->budget_s, flags->json);
      return;
    }
    code =
        PlanOnHardware(LoadRecipe(flags->recipe), flags->world, local_world, hardware, flags->json);
  });
}

void AddSimulateCommand(CLI::App& app, ExitCode& code) {
  struct Flags : MachineFlags {
    SimulateOptions options;
    std::vector<std::string> sweep;
    std::string out;
  };
  CLI::App* const command =
      app.add_subcommand("simulate", "Simulate a recipe's steps on a described cluster");
  const auto flags = std::make_shared<Flags>();
  AddMachineFlags(*command, *flags, /*needs_hardware=*/true);
  command->add_option("--steps", flags->options.steps, "Steps to simulate; the last one is shown")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option("--slowest", flags->options.slowest,
                   "One rank computes this many times slower, and the others wait for it")
      ->check(CLI::Range(1.0, 1e6));
  command
      ->add_option("--sweep", flags->sweep,
                   "Simulate each of these values of a recipe's key or of world_size; with "
                   "several --sweep, all combinations")
      ->type_name("KEY=V1,V2")
      ->allow_extra_args(false)
      ->take_all();
  command
      ->add_option("--out", flags->out,
                   "Write simulate.json and the step's trace there; for a sweep, sweep.csv, "
                   "sweep.json and sweep.html")
      ->type_name("DIR");
  command->callback([flags, &code] {
    const Hardware hardware = ReadHardware(flags->hardware);
    if (!flags->sweep.empty()) {
      const auto recipe = [&](const std::vector<std::string>& settings) {
        RecipeFlags one = flags->recipe;
        one.overrides.insert(one.overrides.end(), settings.begin(), settings.end());
        return LoadRecipe(one);
      };
      SimulateSweep({SweptKeys(flags->sweep), recipe, flags->world, flags->local_world,
                     flags->options, flags->out, flags->json},
                    hardware);
      code = ExitCode::kDone;
      return;
    }
    const int local_world = LocalWorldFor(flags->world, flags->local_world, hardware);
    code = SimulateProcess(LoadRecipe(flags->recipe), flags->world, local_world, hardware,
                           flags->options, flags->out, flags->json);
  });
}

void AddCollectiveCommand(CLI::App& app) {
  struct Flags {
    std::string hardware, call = "all_gather", dtype = "fp32";
    int world = 1;
    int64_t elements = 0;
    bool json = false;
  };
  CLI::App* const command =
      app.add_subcommand("collective", "Price one collective on a described cluster");
  command->group("");  // For tools: not in the help.
  const auto flags = std::make_shared<Flags>();
  command->add_option("--hardware", flags->hardware, "A file of configs/hardware")->required();
  command->add_option("--world-size", flags->world, "Ranks, all of them in the call")
      ->required()
      ->check(CLI::Range(1, kMostRanks));
  command->add_option("--call", flags->call, "all_gather, reduce_scatter, all_reduce, ...");
  command
      ->add_option("--elements", flags->elements,
                   "Elements of the whole tensor: of a gather's result, of a reduction's operand")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 50));
  command->add_option("--dtype", flags->dtype, "fp32, bf16 or fp16");
  command->add_flag("--json", flags->json, "One JSON object");
  command->callback([flags] {
    const Hardware hardware = ReadHardware(flags->hardware);
    const int local_world = LocalWorldFor(flags->world, std::nullopt, hardware);
    const Network network(hardware, flags->world, local_world);
    CollectiveCall call{.kind = CallNamed(flags->call), .dtype = WireDType(flags->dtype)};
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
  });
}

}  // namespace fsdp
