#include "trainer/runtime/choose_device.h"

#include <cstdlib>

#include "trainer/core/errors.h"

namespace fsdp {

ChosenDevice ChooseDevice(WantedDevice wanted, int local_rank, int local_world, const Gpus& gpus) {
  ChosenDevice chosen;
  if (wanted == WantedDevice::kCpu) return chosen;
  const int gpu = GpuOfRank(gpus, local_rank);
  const std::string why = WhyUnusable(gpus, gpu, std::getenv("CUDA_VISIBLE_DEVICES"));
  if (why.empty()) {
    const int count = static_cast<int>(gpus.visible.size());
    chosen.type = DeviceType::kCuda;
    chosen.gpu = gpu;
    chosen.name = gpus.visible[gpu].name;
    chosen.memory = gpus.visible[gpu].memory;
    chosen.uuid = gpus.visible[gpu].uuid;
    // Ranks gpu, gpu + count, ... below local_world.
    chosen.sharers = (local_world - 1 - gpu) / count + 1;
    chosen.note = "computes on GPU " + std::to_string(gpu) + " of " + std::to_string(count) + ", " +
                  chosen.name;
    if (chosen.sharers > 1) {
      chosen.note += ", which " + std::to_string(chosen.sharers) + " ranks of this host share";
    }
    return chosen;
  }
  if (wanted == WantedDevice::kCuda) {
    if (!gpus.built) throw ConfigError("no GPU: " + why);
    throw DeviceError("no GPU: " + why);
  }
  chosen.note = "computes on the CPU: " + why;
  return chosen;
}

}  // namespace fsdp
