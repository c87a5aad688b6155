#include "cmd/simulate_command.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "cmd/recipe_flags.h"
#include "trainer/engine/plan.h"
#include "trainer/launch/environment.h"
#include "trainer/recipe/hardware.h"
#include "trainer/simulate/search_process.h"
#include "trainer/simulate/simulate_process.h"

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
      .add_option(
          "--local-world-size", flags.local_world,
          "Ranks of a host: a divisor; without it as the hardware file says, or all of them")
      ->check(CLI::Range(1, kMostRanks));
  CLI::Option* const hardware =
      command
          .add_option("--hardware", flags.hardware,
                      std::string("A file that describes the ranks' machine, one of "
                                  "configs/hardware for instance") +
                          (needs_hardware ? "" : "; this one without it"))
          ->type_name("FILE");
  if (needs_hardware) hardware->required();
  command.add_flag("--json", flags.json, "One JSON object");
  command.footer(PlanTerms());
  return hardware;
}

}  // namespace

void AddPlanCommand(CLI::App& app, ExitCode& code) {
  CLI::App* const command = app.add_subcommand(
      "plan", "Show what a recipe takes of memory, links and time, without running it");
  struct Flags : MachineFlags {
    bool search = false;
    double budget_s = std::numeric_limits<double>::infinity();
  };
  const auto flags = std::make_shared<Flags>();
  CLI::Option* const machine = AddMachineFlags(*command, *flags, /*needs_hardware=*/false);
  CLI::Option* const search =
      command
          ->add_flag("--search", flags->search,
                     "Look for the settings of sharding, micro-batches, recomputation, offload, "
                     "prefetch and slots whose step is the shortest, results unchanged but for "
                     "rounding")
          ->needs(machine);
  command->add_option("--budget", flags->budget_s, "Seconds of the search, at most")
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
    std::string out;
  };
  CLI::App* const command = app.add_subcommand(
      "simulate", "Run a recipe's steps on a described cluster, in simulated time");
  const auto flags = std::make_shared<Flags>();
  AddMachineFlags(*command, *flags, /*needs_hardware=*/true);
  command->add_option("--steps", flags->options.steps, "Steps to simulate; the last one is shown")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option("--slowest", flags->options.slowest,
                   "One rank computes so many times slower, and the others wait for it")
      ->check(CLI::Range(1.0, 1e6));
  command->add_option("--out", flags->out, "Leaves simulate.json and the step's trace there")
      ->type_name("DIR");
  command->callback([flags, &code] {
    const Hardware hardware = ReadHardware(flags->hardware);
    const int local_world = LocalWorldFor(flags->world, flags->local_world, hardware);
    code = SimulateProcess(LoadRecipe(flags->recipe), flags->world, local_world, hardware,
                           flags->options, flags->out, flags->json);
  });
}

}  // namespace fsdp
