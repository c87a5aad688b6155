// Nothing but parsing flags and calling trainer/.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/bench_command.h"
#include "cmd/cache_command.h"
#include "cmd/calibrate_command.h"
#include "cmd/checkpoint_command.h"
#include "cmd/config_command.h"
#include "cmd/devices_command.h"
#include "cmd/eval_command.h"
#include "cmd/generate_command.h"
#include "cmd/models_command.h"
#include "cmd/recipe_flags.h"
#include "cmd/report_command.h"
#include "cmd/simulate_command.h"
#include "cmd/tokenize_command.h"
#include "trainer/comm/told_once.h"
#include "trainer/core/errors.h"
#include "trainer/core/memory_limits.h"
#include "trainer/core/utf8.h"
#include "trainer/launch/environment.h"
#include "trainer/launch/launch_command.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/launch/stray_word.h"
#include "trainer/launch/supervisor.h"
#include "trainer/loop/process.h"
#include "trainer/observe/build_info.h"
#include "trainer/runtime/gpus.h"

namespace fsdp {
namespace {

std::string Version() {
  return "fsdp-train " + std::string(BuildVersion()) + " (" + std::string(BuildGitHash()) + ", " +
         std::string(BuildCompiler()) + (BuildCuda().empty() ? "" : ", ") +
         std::string(BuildCuda()) + ")";
}

// The flags of `fsdp-train` without a sub-command, and of `launch` after its `--`.
struct TrainingFlags {
  RecipeFlags recipe;
  std::string device;
  bool dry_run = false;
  bool any() const {
    return !recipe.files.empty() || !recipe.overrides.empty() || !device.empty() || dry_run;
  }
};

void AddTrainingFlags(CLI::App& app, TrainingFlags& flags) {
  AddRecipeFlags(app, flags.recipe);
  app.add_option("--device", flags.device, "The same as --set run.device=...")
      ->type_name("auto|cpu|cuda|sim");
  app.add_flag("--dry-run", flags.dry_run,
               "Check everything and plan the memory, but take no device memory");
}

Recipe LoadRecipe(const TrainingFlags& flags) {
  RecipeFlags recipe = flags.recipe;
  if (!flags.device.empty()) recipe.overrides.push_back("run.device=" + flags.device);
  return LoadRecipe(recipe);
}

// Finds mistakes in the ranks' flags, recipe and model, so that they are told once and not by each
// rank. Returns the recipe that the ranks will read.
Recipe CheckLaunch(const LaunchCommand& launch, bool evaluates) {
  CLI::App app(evaluates ? "the flags of eval"
                         : "the flags of a training run, after `launch ... --`");
  TrainingFlags flags;
  EvaluationFlags evaluation;
  evaluates ? AddEvaluationFlags(app, evaluation) : AddTrainingFlags(app, flags);
  std::vector<std::string> reversed(launch.argv.rbegin(), launch.argv.rend());  // As CLI11 wants.
  if (evaluates) reversed.pop_back();
  app.parse(reversed);
  const LaunchOptions& options = launch.options;
  if (evaluates && options.max_restarts > 0) {
    throw ConfigError("launch: --max-restarts: an evaluation has nothing to go on from");
  }
  const int world = options.nnodes * options.nproc_per_node;
  Recipe recipe = evaluates ? PrepareEvaluation(evaluation).recipe : LoadRecipe(flags);
  if (evaluates) ShardFor(world, recipe);
  CheckTraining(recipe, world, options.nproc_per_node, options.max_restarts);
  return recipe;
}

// The words to type instead of those that CLI11 does not take.
std::string Cure(const CLI::ParseError& error, std::string_view front,
                 const std::vector<std::string>& words) {
  const bool launches = front == "launch";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    for (size_t i = 1; i < words.size(); ++i) {
      const bool follows_its_flag = words[i - 1] == "--config" || words[i - 1] == "--set";
      std::string meant = follows_its_flag
                              ? ""
                              : MeantBy(words[i], launches ? "fsdp-train launch --" : "fsdp-train");
      if (!meant.empty()) return meant;
    }
  }
  return "Run with --help for more information.";
}

// Checks limits that would otherwise end in a crash somewhere, without a word. A rank of a small
// model takes 11 files and 160 KiB of stack; each of its threads gets as much as this limit says.
bool LimitsAreEnough() {
  constexpr rlim_t kFiles = 64, kStack = 1 << 20;
  rlimit files, stack;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kFiles) {
    rlimit raised = files;
    raised.rlim_cur = std::min(kFiles, files.rlim_max);
    if (raised.rlim_cur < kFiles || setrlimit(RLIMIT_NOFILE, &raised) != 0) {
      dprintf(
          STDERR_FILENO,
          "fsdp-train: this process may have %llu files open (ulimit -n), and needs %llu at the "
          "least; 1024 are usual\n",
          static_cast<unsigned long long>(files.rlim_max), static_cast<unsigned long long>(kFiles));
      return false;
    }
  }
  if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < kStack) {
    dprintf(STDERR_FILENO,
            "fsdp-train: a stack of %llu KiB is too small (ulimit -s): it takes %llu KiB at the "
            "least, and 8192 are usual\n",
            static_cast<unsigned long long>(stack.rlim_cur / 1024),
            static_cast<unsigned long long>(kStack / 1024));
    return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  SpareAddressSpace();
  // Before anything else: a signal that comes from here on finds a rank that knows of it, or, with
  // launch, waits for the ranks. Arguments without a sub-command's name in front are a training
  // run.
  std::optional<StopSignal> signals;
  const std::string_view front = argc > 1 ? argv[1] : "";
  if (front.starts_with("-") || front == "eval") signals.emplace();
  if (front == "launch") HoldStopSignals();
  if (!LimitsAreEnough()) return static_cast<int>(ExitCode::kRuntime);
  std::signal(SIGXFSZ, SIG_IGN);  // A limit on the size of files is a full disk: writes say so.

  CLI::App app(
      "fsdp-train: Fully Sharded Data Parallel training from a YAML recipe\n\n"
      "Without a sub-command it trains, and this process is one rank:\n"
      "  fsdp-train --config FILE                               alone, or under torchrun, srun, "
      "mpirun\n"
      "  fsdp-train launch --nproc-per-node 2 -- --config FILE  two ranks on this host\n"
      "Ctrl-C ends a run with a checkpoint; the same command goes on from there.\n");
  app.set_version_flag("--version", Version());
  app.footer(
      "Exit codes: 0 done, 1 runtime, 2 usage or recipe, 3 does not fit in memory, 4 data,\n"
      "5 checkpoint or run directory, 6 a collective failed or timed out, "
      "7 loss or weights not finite,\n"
      "75 stopped early on a signal: the last line says from which checkpoint it can go on, if "
      "any;\n128 + n where signal n ended it: after SIGKILL (137) Linux has ended what took "
      "too much memory.");
  app.require_subcommand(0, 1);

  TrainingFlags flags;
  AddTrainingFlags(app, flags);

  AddBenchCommand(app);
  AddCalibrateCommand(app);
  AddConfigCommand(app);
  AddCheckpointCommand(app);
  EvaluationFlags evaluation;
  CLI::App* const eval_command =
      app.add_subcommand("eval", "Compute the loss of a checkpoint on the validation sets");
  AddEvaluationFlags(*eval_command, evaluation);
  AddGenerateCommand(app);
  AddReportCommand(app);
  AddTokenizeCommand(app);
  AddCacheCommand(app);

  LaunchCommand launch;
  CLI::App* const launch_command =
      AddLaunchCommand(app, &launch, [] { return static_cast<int>(FindGpus().visible.size()); });

  ExitCode code = ExitCode::kDone;
  AddPlanCommand(app, code);
  AddSimulateCommand(app, code);
  AddCollectiveCommand(app);
  AddModelsCommand(app);
  AddDevicesCommand(app);

  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) {
      const Recipe recipe = LoadRecipe(flags);
      if (!signals) signals.emplace();
      return static_cast<int>(TrainProcess(recipe, std::vector<std::string>(argv, argv + argc),
                                           flags.dry_run, *signals));
    } else if (flags.any()) {
      throw ConfigError("flags of a training run go without a sub-command, or after its name");
    }
    if (launch_command->parsed()) {
      const bool evaluates = !launch.argv.empty() && launch.argv[0] == "eval";
      const Recipe recipe = CheckLaunch(launch, evaluates);
      if (!evaluates) launch.options.how_to_go_on = [&] { return HowToGoOn(recipe); };
      return Launch(launch.options, launch.argv);
    }
    if (eval_command->parsed()) {
      if (!signals) signals.emplace();
      code = EvaluateProcess(PrepareEvaluation(evaluation),
                             std::vector<std::string>(argv, argv + argc), *signals);
    }
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);  // Prints to stdout.
  } catch (const CLI::ParseError& error) {
    std::fprintf(
        stderr, "fsdp-train: %s\n%s\n", Printable(error.what()).c_str(),
        Printable(Cure(error, front, std::vector<std::string>(argv, argv + argc))).c_str());
    return static_cast<int>(ExitCode::kUsage);
  } catch (const ToldByAnother& error) {
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", Printable(error.what()).c_str());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp-train: %s\n", Printable(error.what()).c_str());
    return static_cast<int>(ExitCode::kRuntime);
  }
  // A full disk or a closed pipe shows only now.
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    std::perror("fsdp-train: stdout");
    return static_cast<int>(ExitCode::kRuntime);
  }
  return static_cast<int>(code);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  try {
    return fsdp::Main(argc, argv);
  } catch (const std::bad_alloc&) {  // No memory is left for more words.
    std::fputs("fsdp-train: no memory left: see ulimit -v and -d, and the control group's limit\n",
               stderr);
    return static_cast<int>(fsdp::ExitCode::kMemory);
  }
}
