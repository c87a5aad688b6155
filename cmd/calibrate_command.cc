#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "trainer/bench/calibrate.h"
#include "trainer/bench/calibration.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/observe/provenance.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/recipe/hardware.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {
namespace {

struct Flags {
  std::string out, device = "auto";
  std::vector<std::string> from;
  std::vector<std::string> steps;  // Recipes.
  std::optional<int> rounds;
  int Rounds() const { return rounds.value_or(2); }
  bool small = false;
  bool overheads = false;
};

// Tells people how far the command is. The file holds all results.
void Say(const std::string& what) {
  std::fprintf(stderr, "calibrate: %s\n", what.c_str());
  std::fflush(stderr);
}

CalibrateOptions OptionsFor(const Flags& flags, const ChosenDevice& device, const HostInfo& host) {
  CalibrateOptions options{.device = device.type,
                           .gpu = device.gpu,
                           .threads = static_cast<int>(host.cores),
                           .rounds = flags.Rounds(),
                           .small = flags.small};
  if (flags.small) options.seconds = 0;
  return options;
}

Measurements MeasureHere(const Flags& flags, const ChosenDevice& device) {
  const HostInfo host = DescribeHost();
  Measurements measured;
  measured.host_memory = host.memory;
  CalibrateOptions options = OptionsFor(flags, device, host);
  if (device.type == DeviceType::kCuda) {
    measured.device = Hardware::Device::kCuda;
    measured.name = device.name;
    measured.memory = device.memory;
    options.ranks = std::min<int>(8, static_cast<int>(FindGpus().visible.size()));
  } else {
    measured.name = host.processor +
                    (host.cores == 1 ? ", 1 core" : ", " + std::to_string(host.cores) + " cores");
    measured.kernels = ThisIsa().name;
    measured.memory = host.memory;
    measured.cores = host.cores;
    options.ranks = static_cast<int>(std::clamp<int64_t>(host.cores, 2, 8));
  }
  Measure(options, Say, measured);
  return measured;
}

// Adds what the files of --from lack. Files that name no device are taken for this machine's.
void AddOverheads(const Flags& flags, Measurements& measured) {
  const WantedDevice wanted = measured.device == Hardware::Device::kCuda ? WantedDevice::kCuda
                              : measured.name.empty()                    ? WantedDevice::kAuto
                                                                         : WantedDevice::kCpu;
  const ChosenDevice device = ChooseDevice(wanted, /*local_rank=*/0, /*local_world=*/1);
  if (!measured.name.empty() && measured.name != device.name) {
    throw ConfigError("calibrate: --overheads measures " + device.name + ", and --from is of " +
                      measured.name);
  }
  const HostInfo host = DescribeHost();
  const bool on_gpu = device.type == DeviceType::kCuda;
  if (!on_gpu && measured.kernels.value_or(ThisIsa().name) != ThisIsa().name) {
    throw ConfigError("calibrate: --overheads measures " + ThisIsa().name +
                      " kernels, and --from is of " + *measured.kernels);
  }
  measured.name = device.name;
  measured.device = on_gpu ? Hardware::Device::kCuda : Hardware::Device::kCpu;
  measured.host_memory = host.memory;
  measured.memory = on_gpu ? device.memory : host.memory;
  MeasureCopiesAndOverheads(OptionsFor(flags, device, host), Say, measured);
}

// A directory that goes with this object.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    if (mkdtemp(path_.data()) == nullptr)
      throw Error(ExitCode::kRuntime, path_ + ": cannot be made");
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "fsdp-train-XXXXXX").string();
};

// The recipes that --step names, shortened to a few steps that save and evaluate nothing.
std::vector<Recipe> ReadSteps(const Flags& flags) {
  std::vector<Recipe> recipes;
  for (const std::string& file : flags.steps) {
    recipes.push_back(LoadRecipe(RecipeFlags{
        .files = {file},
        .overrides = {"train.steps=14", "train.epochs=null", "schedule.name=constant",
                      "schedule.warmup_steps=0", "checkpoint.every=null", "eval.every=0",
                      "log.every=1", "log.tensorboard=false", "log.trace_steps=[]"}}));
  }
  return recipes;
}

// Sets `reached` to the geometric mean over the recipes. The fastest of a few runs counts, and
// short runs are repeated: a machine that others use is slow for seconds at a time.
void MeasureSteps(const Flags& flags, const std::vector<Recipe>& recipes,
                  const ChosenDevice& device, Hardware& hardware) {
  const std::chrono::seconds enough(flags.small ? 0 : 8);
  double product = 1;
  std::string source = "calibrate: a step of";
  for (size_t i = 0; i < recipes.size(); ++i) {
    double seconds = std::numeric_limits<double>::infinity();
    const auto start = std::chrono::steady_clock::now();
    for (int round = 1;
         round <= flags.Rounds() || std::chrono::steady_clock::now() - start < enough; ++round) {
      Say("a step of " + flags.steps[i] + ", round " + std::to_string(round));
      const ScratchDirectory scratch;
      seconds = std::min(seconds, SecondsOfAStep(recipes[i], device, scratch.path()));
    }
    product *= ReachedBy(seconds, recipes[i], hardware);
    source += (i == 0 ? " " : ", ") + flags.steps[i];
  }
  hardware.reached = std::pow(product, 1.0 / static_cast<double>(recipes.size()));
  hardware.sources["reached"] = source;
}

void Run(const Flags& flags) {
  const std::vector<Recipe> steps = ReadSteps(flags);
  std::optional<ChosenDevice> device;
  Measurements measured;
  std::string source = "calibrate: by measurement, on " + UtcNow();
  if (flags.from.empty()) {
    device = DeviceHere(flags.device);
    measured = MeasureHere(flags, *device);
  } else {
    source = "calibrate: from";
    for (const std::string& path : flags.from) {
      AddMeasurements(path, measured);
      source += " " + path;
    }
    if (flags.overheads) {
      AddOverheads(flags, measured);
      source += ", copies and overheads by measurement, on " + UtcNow();
    }
    if (measured.name.empty()) measured.name = "unknown";  // bench gemm names none.
  }
  Hardware hardware;
  try {
    hardware = HardwareOf(measured, source);
  } catch (const std::invalid_argument&) {
    throw ConfigError("calibrate: --from has no product, operation, copy or collective");
  }
  if (!steps.empty()) MeasureSteps(flags, steps, *device, hardware);
  AtomicFile file(flags.out);
  file.Append(WriteHardware(hardware));
  file.Commit();
  std::printf("%s: %s\n", flags.out.c_str(), hardware.name.c_str());
}

}  // namespace

Command CalibrateCommand() {
  const auto flags = std::make_shared<Flags>();
  Command command{"calibrate",
                  "Measure this machine and write its hardware file for plan and simulate"};
  command.flags = {
      {"--out", &flags->out, "The file", FlagRules{.value = "FILE", .required = true}},
      {"--from", &flags->from,
       "Measure nothing: read the JSON of `bench gemm|ops|comm --json`, or result.json of "
       "tools/gpu/kit",
       FlagRules{.value = "FILE"}},
      {"--device", &flags->device, "auto: a GPU if one can be used, otherwise the CPU",
       FlagRules{.choices = kDevices, .shows_default = true, .excludes = "--from"}},
      {"--step", &flags->steps,
       "Recipes: one rank trains a few steps of each here. They set the share of its kernels' "
       "rates that a whole step reaches",
       FlagRules{.value = "FILE", .excludes = "--from"}},
      {"--overheads", &flags->overheads,
       "With --from: measure here what those files lack, in seconds: copies, the link to the "
       "host, launches, and the host's time for each operation",
       FlagRules{.needs = "--from"}},
      {"--rounds", &flags->rounds,
       "Times that everything is measured, a step's recipe for at least 8 s; the fastest counts",
       FlagRules{.range = {1, 100}, .default_text = "2"}},
      {"--small", &flags->small, "Tiny shapes, in a second: to try the command, not to measure"},
  };
  command.footer =
      "Takes a minute or two. Other work on the machine makes it look slower than it is.";
  command.run = [flags] {
    if (!flags->from.empty() && !flags->overheads && (flags->rounds || flags->small)) {
      throw ConfigError(
          "calibrate: --from measures nothing, so it takes neither --rounds nor "
          "--small without --overheads");
    }
    Run(*flags);
  };
  return command;
}

}  // namespace fsdp
