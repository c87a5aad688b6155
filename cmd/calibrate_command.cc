#include "cmd/calibrate_command.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/bench/calibrate.h"
#include "trainer/bench/calibration.h"
#include "trainer/bench/calibration_files.h"
#include "trainer/core/errors.h"
#include "trainer/core/whole_file.h"
#include "trainer/observe/provenance.h"
#include "trainer/recipe/hardware.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/gpus.h"

namespace fsdp {
namespace {

struct Flags {
  std::string out, device = "auto";
  std::vector<std::string> from;
  int rounds = 2;
  bool small = false;
};

// Tells people how far the command is. The file holds all results.
void Say(const std::string& what) {
  std::fprintf(stderr, "calibrate: %s\n", what.c_str());
  std::fflush(stderr);
}

Measurements MeasureHere(const Flags& flags) {
  const WantedDevice wanted = flags.device == "cuda"  ? WantedDevice::kCuda
                              : flags.device == "cpu" ? WantedDevice::kCpu
                                                      : WantedDevice::kAuto;
  const ChosenDevice device = ChooseDevice(wanted, /*local_rank=*/0, /*local_world=*/1);
  const HostInfo host = DescribeHost();
  Measurements measured;
  measured.host_memory = host.memory;
  CalibrateOptions options{.device = device.type,
                           .gpu = device.gpu,
                           .threads = static_cast<int>(host.cores),
                           .rounds = flags.rounds,
                           .small = flags.small};
  if (flags.small) options.seconds = 0;
  if (device.type == DeviceType::kCuda) {
    measured.device = Hardware::Device::kCuda;
    measured.name = device.name;
    measured.memory = device.memory;
    options.ranks = std::min<int>(8, static_cast<int>(FindGpus().visible.size()));
  } else {
    measured.name = host.processor +
                    (host.cores == 1 ? ", 1 core" : ", " + std::to_string(host.cores) + " cores");
    measured.memory = host.memory;
    measured.cores = host.cores;
    options.ranks = static_cast<int>(std::clamp<int64_t>(host.cores, 2, 8));
  }
  Measure(options, Say, measured);
  return measured;
}

void Run(const Flags& flags) {
  Measurements measured;
  std::string source = "calibrate: by measurement, on " + UtcNow();
  if (flags.from.empty()) {
    measured = MeasureHere(flags);
  } else {
    source = "calibrate: from";
    for (const std::string& path : flags.from) {
      AddMeasurements(path, measured);
      source += " " + path;
    }
    if (measured.name.empty()) measured.name = "unknown";  // bench gemm names none.
  }
  Hardware hardware;
  try {
    hardware = HardwareOf(measured, source);
  } catch (const std::invalid_argument&) {
    throw ConfigError("calibrate: --from has no product, operation, copy or collective");
  }
  WholeFile file(flags.out);
  file.Append(WriteHardware(hardware));
  file.Commit();
  std::printf("%s: %s\n", flags.out.c_str(), hardware.name.c_str());
}

}  // namespace

void AddCalibrateCommand(CLI::App& app) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = app.add_subcommand(
      "calibrate", "Measure this machine and write its hardware file for plan and simulate");
  command->add_option("--out", flags->out, "The file")->required()->type_name("FILE");
  CLI::Option* const from =
      command
          ->add_option("--from", flags->from,
                       "Measure nothing: read the JSON of `bench gemm|ops|comm --json`, or "
                       "result.json of tools/gpu/kit")
          ->type_name("FILE ...");
  command
      ->add_option("--device", flags->device, "auto: a GPU if one can be used, otherwise the CPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->excludes(from);
  command
      ->add_option("--rounds", flags->rounds,
                   "Times that everything is measured; the fastest counts")
      ->check(CLI::Range(1, 100))
      ->capture_default_str()
      ->excludes(from);
  command
      ->add_flag("--small", flags->small,
                 "Tiny shapes, in a second: to try the command, not to measure")
      ->excludes(from);
  command->footer(
      "Takes a minute or two. Other work on the machine makes it look slower than it is.");
  command->callback([flags] { Run(*flags); });
}

}  // namespace fsdp
