#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/core/units.h"
#include "trainer/engine/step_resource.h"
#include "trainer/loop/place.h"
#include "trainer/loop/plan_heading.h"
#include "trainer/loop/resolve.h"
#include "trainer/recipe/hardware.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/step_floor.h"

namespace fsdp {
namespace {

constexpr double kGiB = 0x1p-30;  // A byte in GiB.

const char* Name(StepResource resource) {
  constexpr std::array<const char*, kNumStepResources> kNames = {
      "device", "to_host", "to_device", "host", "disk_read", "disk_write"};
  return kNames[static_cast<size_t>(resource)];
}

struct FloorFlags {
  RecipeFlags recipe;
  int world = 1;
  std::string hardware, device = "auto";
  bool json = false;
};

JsonObject FloorToJson(const StepFloor& floor, const Hardware& hardware, int world) {
  std::vector<std::string> parts;
  for (const FloorPart& part : floor.parts) {
    parts.push_back(JsonObject()
                        .Add("op", part.op)
                        .Add("on", Name(part.resource))
                        .Add("kernels", part.launches.kernels)
                        .Add("copies", part.launches.copies)
                        .Add("flops", part.flops)
                        .Add("bytes", part.bytes)
                        .Add("extra_bytes", part.extra_bytes)
                        .Add("link_bytes", part.link_bytes)
                        .Add("seconds", part.seconds)
                        .Add("extra_seconds", part.extra_seconds)
                        .Add("in_the_floor", part.in_the_floor)
                        .Text());
  }
  JsonObject seconds;
  for (int r = 0; r < kNumStepResources; ++r) {
    const auto resource = static_cast<StepResource>(r);
    seconds.Add(Name(resource), floor.SecondsOf(resource));
  }
  JsonObject object;
  object.Add("hardware", hardware.name);
  if (hardware.kernels) object.Add("cpu_kernels", *hardware.kernels);
  return object.Add("world_size", world)
      .Add("tokens", floor.tokens)
      .Add("seconds", floor.Seconds())
      .AddRaw("seconds_on", seconds.Text())
      .Add("beside_updates_seconds", floor.beside_updates)
      .Add("tokens_per_s", floor.tokens / floor.Seconds())
      .Add("kernels", floor.AllLaunches().kernels)
      .Add("copies", floor.AllLaunches().copies)
      .Add("needless_bytes", floor.NeedlessBytes())
      .Add("needless_seconds", floor.NeedlessSeconds())
      .AddRaw("parts", JsonArray(parts));
}

// Prints what moves and is updated beside the device.
void PrintOffloaded(const StepFloor& floor) {
  std::printf("%-32s %32s %10s\n", "beside the device", "GiB", "ms");
  for (int r = 0; r < kNumStepResources; ++r) {
    const auto resource = static_cast<StepResource>(r);
    double bytes = 0;
    for (const FloorPart& part : floor.parts) bytes += part.resource == resource ? part.bytes : 0;
    if (resource == StepResource::kDevice || bytes == 0) continue;
    std::printf("%-32s %32.2f %10.2f\n", Name(resource), bytes * kGiB,
                floor.SecondsOf(resource) * 1e3);
  }
  std::printf("%-32s %32s %10.2f\n", "may run beside the host's", "", floor.beside_updates * 1e3);
  std::printf("%-32s %32s %10.2f\n\n", "the step", "", floor.Seconds() * 1e3);
}

// Launches and extra bytes are a GPU's.
void PrintFloor(const StepFloor& floor, const Hardware& hardware, int world) {
  const bool gpu = hardware.device == Hardware::Device::kCuda;
  const std::string kernels = hardware.kernels ? ", kernels " + *hardware.kernels : "";
  std::printf("%s%s, %d rank%s, %.0f tokens a step\n", hardware.name.c_str(), kernels.c_str(),
              world, world == 1 ? "" : "s", floor.tokens);
  std::printf("%-32s %9s %10s %10s %10s", "", gpu ? "launches" : "", "TFLOP", "GiB", "ms");
  if (gpu) std::printf(" %10s %10s", "extra GiB", "extra ms");
  std::printf("\n");
  const auto line = [&](const std::string& name, const FloorPart& part) {
    const int64_t launches = part.launches.kernels + part.launches.copies;
    std::printf("%-32s %9s %10.2f %10.2f %10.2f", name.c_str(),
                gpu ? std::to_string(launches).c_str() : "", part.flops * 1e-12, part.bytes * kGiB,
                part.seconds * 1e3);
    if (gpu) std::printf(" %10.2f %10.2f", part.extra_bytes * kGiB, part.extra_seconds * 1e3);
    std::printf("\n");
  };
  const auto group = [&](const char* name, const auto& is_in) {
    FloorPart all;
    for (const FloorPart& part : floor.parts) {
      if (!is_in(part)) continue;
      line(part.op, part);
      all.launches += part.launches;
      all.flops += part.flops;
      all.bytes += part.bytes;
      all.seconds += part.seconds;
      all.extra_bytes += part.extra_bytes;
      all.extra_seconds += part.extra_seconds;
    }
    line(name, all);
    std::printf("\n");
  };
  constexpr StepResource kDevice = StepResource::kDevice;
  group("the floor", [](const FloorPart& p) { return p.resource == kDevice && p.in_the_floor; });
  group("beside it, by kernels of its own",
        [](const FloorPart& p) { return p.resource == kDevice && !p.in_the_floor; });
  const auto offloaded = [](const FloorPart& p) { return p.resource != kDevice; };
  if (std::any_of(floor.parts.begin(), floor.parts.end(), offloaded)) {
    PrintOffloaded(floor);
  }
  const double seconds = floor.Seconds(), more = floor.NeedlessSeconds();
  const auto launches = floor.AllLaunches();
  if (gpu) {
    std::printf("%s and %lld cop%s a step\n", Counted(launches.kernels, "kernel").c_str(),
                static_cast<long long>(launches.copies), launches.copies == 1 ? "y" : "ies");
  }
  std::printf("no floor needs %.4g GiB and %.4g ms of it: %swhat is beside it\n",
              floor.NeedlessBytes() * kGiB, more * 1e3, gpu ? "extra ones, and " : "");
  std::printf("at the floor %.4g tokens/s, with these %.4g\n", floor.tokens / seconds,
              floor.tokens / (seconds + more));
}

void RunFloor(const FloorFlags& flags) {
  const Hardware hardware = ReadHardware(flags.hardware);
  const std::string device = hardware.device == Hardware::Device::kCuda ? "cuda" : "cpu";
  if (flags.device != "auto" && flags.device != device) {
    throw ConfigError("bench floor: --device " + flags.device + ", and " + flags.hardware +
                      " describes a machine whose device is " + device);
  }
  const Recipe recipe = LoadRecipe(flags.recipe);
  const ResolvedRun run = Resolve(recipe, PlaceToBench(flags.world, hardware));
  const StepFloor floor = FloorOf(run, hardware);
  const std::string note = NoteOnKernels(hardware, recipe.fsdp.mixed_precision.param_dtype);
  std::fprintf(stderr, "%s", note.c_str());
  if (flags.json) {
    std::printf("%s\n", FloorToJson(floor, hardware, flags.world).Text().c_str());
  } else {
    PrintFloor(floor, hardware, flags.world);
  }
}

}  // namespace

Command BenchFloorCommand() {
  const auto flags = std::make_shared<FloorFlags>();
  Command command{"floor", "Compute the shortest time of a recipe's step on a described machine"};
  command.flags = {
      ConfigFlag(&flags->recipe.files),
      SetFlag(&flags->recipe.overrides),
      {"--world-size", &flags->world, "Ranks that share the global batch",
       FlagRules{.range = {1, 1 << 20}, .shows_default = true}},
      {"--hardware", &flags->hardware,
       "A file that describes the machine and its rates, such as those of configs/hardware",
       kRequiredPath},
      {"--device", &flags->device,
       "The device that the file has to describe; auto: whichever it describes",
       FlagRules{.choices = kDevices, .shows_default = true}},
      {"--json", &flags->json, "One JSON object"},
  };
  command.footer =
      "A product or attention takes the longer of its FLOPs and its bytes at the machine's rates,\n"
      "every other op its bytes; an op for which the file has a better rate takes that. The loss "
      "of\n"
      "a CPU's head has its logits among its bytes. Launches are a GPU's, of kernels and copies; "
      "a\n"
      "collective counts as one, and so does a call of cuBLASLt or cuDNN. Extra bytes are those "
      "that an op's\n"
      "kernels pass to each other, and those read again; extra time is what they add, none where\n"
      "FLOPs take longer. Traffic to other ranks takes no time here.\n"
      "With offload a step takes as long as the slowest of the device, each direction of its link\n"
      "to the host, and the disk; host updates longer than the first forward pass also hold up\n"
      "the device.";
  command.run = [flags] { RunFloor(*flags); };
  return command;
}

}  // namespace fsdp
