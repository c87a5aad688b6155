// Nothing but parsing flags and calling trainer/.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/command_line.h"
#include "trainer/core/errors.h"
#include "trainer/core/left_behind.h"
#include "trainer/core/process_limits.h"
#include "trainer/core/utf8.h"
#include "trainer/launch/environment.h"
#include "trainer/launch/launch_command.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/launch/supervisor.h"
#include "trainer/loop/evaluate.h"
#include "trainer/loop/process.h"
#include "trainer/observe/build_info.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/runtime/choose_device.h"

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

Command TrainingCommand(const std::string& name, const std::string& about, TrainingFlags* flags) {
  Command command{name, about};
  command.flags = {
      ConfigFlag(&flags->recipe.files),
      SetFlag(&flags->recipe.overrides),
      {"--device", &flags->device, "The same as --set run.device=...",
       FlagRules{.value = "auto|cpu|cuda|sim"}},
      {"--dry-run", &flags->dry_run,
       "Check everything and plan the memory, but take no device memory"},
  };
  return command;
}

// For its own command, and for the ranks that `launch` starts.
Command EvalCommand(const std::string& name, EvaluationFlags* flags) {
  Command command{name, "Compute the loss of a checkpoint on the validation sets"};
  command.flags = {
      CheckpointFlag(&flags->checkpoint),
      LatestFlag(&flags->latest),
      ConfigFlag(&flags->config),
      SetFlag(&flags->overrides),
      {"--full", &flags->full, "Evaluate all of each set instead of eval.steps batches"},
      {"--json", &flags->json, "One JSON object"},
      {"--predictions", &flags->predictions,
       "Write a line for each sample: class and probabilities, or a click's probability",
       FlagRules{.value = "FILE"}},
  };
  command.footer =
      "Without --config it evaluates by the recipe that the checkpoint was trained by; --set "
      "changes it.\n"
      "On several ranks: fsdp-train launch --nproc-per-node 2 -- eval RUN_DIR";
  return command;
}

Recipe LoadRecipe(const TrainingFlags& flags, const RecipeCheck& more) {
  RecipeFlags recipe = flags.recipe;
  if (!flags.device.empty()) recipe.overrides.push_back("run.device=" + flags.device);
  return LoadRecipe(recipe, more);
}

// Starts the ranks. Finds mistakes in their flags, recipe and model before, so that they are told
// once and not by each rank.
int RunLaunch(const LaunchCommand& launch) {
  LaunchOptions options = launch.options;
  TrainingFlags flags;
  EvaluationFlags evaluation;
  const bool evaluates = !launch.argv.empty() && launch.argv[0] == "eval";
  const Command ranks =
      evaluates ? EvalCommand("fsdp-train launch ... -- eval", &evaluation)
                : TrainingCommand("fsdp-train launch ... --", "A rank of a training run", &flags);
  const CommandLine line =
      ReadCommandLine(ranks, {launch.argv.begin() + (evaluates ? 1 : 0), launch.argv.end()});
  if (!line.text.empty()) return std::fputs(line.text.c_str(), stdout), 0;
  if (evaluates && options.max_restarts > 0) {
    throw ConfigError("launch: --max-restarts: an evaluation has nothing to go on from");
  }
  const int world = options.nnodes * options.nproc_per_node;
  const auto of_place = [&](const Recipe& recipe) {
    return PlaceConflicts(recipe, world, options.nproc_per_node, options.max_restarts);
  };
  Recipe recipe = evaluates ? PrepareEvaluation(evaluation).recipe : LoadRecipe(flags, of_place);
  if (evaluates) ShardFor(world, recipe);
  CheckTraining(recipe, world, options.nproc_per_node, options.max_restarts);
  if (!evaluates) options.how_to_go_on = [&] { return HowToGoOn(recipe); };
  options.has_time_limit = recipe.run.max_time.has_value() || ReadJobEndTime().has_value();
  return Launch(options, launch.argv);
}

// The words to type instead of those that no flag takes.
std::string Cure(const UsageError& error, std::string_view front,
                 const std::vector<std::string>& words) {
  const bool launches = front == "launch";
  const std::string program = launches ? "fsdp-train launch --" : "fsdp-train";
  for (size_t i = 1; i < words.size() && !error.strays.empty(); ++i) {
    const bool follows_its_flag = words[i - 1] == "--config" || words[i - 1] == "--set";
    std::string meant = follows_its_flag ? "" : MeantBy(words[i], program);
    if (!meant.empty()) return meant;
  }
  if (!error.hint.empty()) return error.hint;
  for (const std::string& stray : error.strays) {
    const std::string key = KeyOfFlag(stray);
    if (!key.empty()) return "a key is set by --set: " + program + " --set " + key + "=VALUE";
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

// Before there are threads: ThisIsa(). The ranks that `launch` starts say it themselves.
void ChooseKernels(bool says) {
  const IsaChoice& isa = ThisIsa();
  if (!says || isa.refused.empty()) return;
  std::fprintf(stderr, "fsdp-train: kernels %s, not amx: %s\n", isa.name.c_str(),
               isa.refused.c_str());
}

// HoldStopSignals() at the first moment at which code of the program runs: before all constructors.
// In the kernel's exec and the dynamic loader, some milliseconds, only who starts the program can
// hold a signal. No sanitizer has begun by then.
[[gnu::no_sanitize("address", "thread", "undefined")]] void HoldFromTheStart() {
  const uint64_t bits = StopSignalBits();
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &bits, nullptr, sizeof(bits));
}
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const hold_from_the_start)() = HoldFromTheStart;

int Main(int argc, char** argv) {
  // Those that `launch` starts do so themselves, and say what they overrule.
  if (argc < 2 || std::string_view(argv[1]) != "launch") SetGpuEnvironment();
  SpareAddressSpace();
  // Before anything else: a signal that has come finds a rank that knows of it, or, with launch,
  // waits for the ranks; other commands have no use for it. Arguments without a sub-command's name
  // in front are a training run. The handlers stay until the process is gone: a signal at a run's
  // end does not change how it has ended.
  static std::optional<StopSignal>& signals = *new std::optional<StopSignal>;
  const std::string_view front = argc > 1 ? argv[1] : "";
  if (front.starts_with("-") || front == "eval") {
    signals.emplace();
  } else if (front != "launch") {
    ReleaseStopSignals();
  }
  if (!LimitsAreEnough()) return static_cast<int>(ExitCode::kRuntime);
  std::signal(SIGXFSZ, SIG_IGN);  // A limit on the size of files is a full disk: writes say so.

  const std::vector<std::string> words(argv, argv + argc);
  TrainingFlags flags;
  EvaluationFlags evaluation;
  LaunchCommand launch;
  Command eval = EvalCommand("eval", &evaluation);
  eval.run = [&] {
    if (!signals) signals.emplace();
    return EvaluateProcess(PrepareEvaluation(evaluation), words, *signals);
  };
  Command launches =
      MakeLaunchCommand(&launch, [] { return static_cast<int>(FindGpus().visible.size()); });
  launches.run = [&] { return RunLaunch(launch); };
  Command program = TrainingCommand(
      argc > 0 ? argv[0] : "fsdp-train",
      "fsdp-train: Fully Sharded Data Parallel training from a YAML recipe\n\n"
      "Without a sub-command it trains, and this process is one rank:\n"
      "  fsdp-train --config FILE                               alone, or under torchrun, srun, "
      "mpirun\n"
      "  fsdp-train launch --nproc-per-node 2 -- --config FILE  two ranks on this host\n"
      "Ctrl-C ends a run with a checkpoint; the same command goes on from there.\n",
      &flags);
  program.version = Version();
  program.footer =
      "Exit codes: 0 done, 1 runtime, 2 usage or recipe, 3 does not fit in memory, 4 data,\n"
      "5 checkpoint or run directory, 6 a collective failed or timed out, "
      "7 loss or weights not finite,\n"
      "75 stopped early, on a signal or at run.max_time: the last line says from which checkpoint "
      "it can go on, if "
      "any;\n128 + n where signal n ended it: after SIGKILL (137) Linux has ended what took "
      "too much memory.";
  program.commands = {BenchCommand(),
                      CalibrateCommand(),
                      ConfigCommand(),
                      DataCommand(),
                      CheckpointCommand(),
                      eval,
                      GenerateCommand(),
                      ReportCommand(),
                      TokenizeCommand(),
                      CacheCommand(),
                      launches,
                      PlanCommand(),
                      SimulateCommand(),
                      CollectiveCommand(),
                      ModelsCommand(),
                      DevicesCommand(),
                      HelpCommand(program)};
  program.run = [&] {
    const Recipe recipe = LoadRecipe(flags, PlaceConflictsHere);
    if (!signals) signals.emplace();
    return TrainProcess(recipe, words, flags.dry_run, *signals);
  };

  const auto show = [](const std::string& text) { return Printable(WithShortNumbers(text)); };
  int code = 0;
  try {
    const CommandLine line = ReadCommandLine(program, {words.begin() + (argc > 0), words.end()});
    if (!line.text.empty()) {
      std::fputs(line.text.c_str(), stdout);
    } else if (line.command != &program && flags.any()) {
      throw ConfigError("flags of a training run go without a sub-command, or after its name");
    } else {
      ChooseKernels(/*says=*/front != "launch");
      code = line.command->run();
    }
  } catch (const UsageError& error) {
    std::fprintf(stderr, "fsdp-train: %s\n%s\n", show(error.what()).c_str(),
                 show(Cure(error, front, words)).c_str());
    return static_cast<int>(error.code());
  } catch (const ReportedElsewhere& error) {
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", show(error.what()).c_str());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp-train: %s\n", show(error.what()).c_str());
    return static_cast<int>(ExitCode::kRuntime);
  }
  // A full disk or a closed pipe shows only now.
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    std::perror("fsdp-train: stdout");
    return static_cast<int>(ExitCode::kRuntime);
  }
  return code;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  try {
    return fsdp::ExitBeside(fsdp::Main(argc, argv));
  } catch (const std::bad_alloc&) {  // No memory is left for more words.
    std::fputs("fsdp-train: no memory left: see ulimit -v and -d, and the control group's limit\n",
               stderr);
    return static_cast<int>(fsdp::ExitCode::kMemory);
  }
}
