// What a rank computes on, of what its host has.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CHOOSE_DEVICE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CHOOSE_DEVICE_H_

#include <cstdint>
#include <string>

#include "trainer/runtime/device.h"
#include "trainer/runtime/gpus.h"

namespace fsdp {

enum class WantedDevice {
  kAuto,  // A GPU if one can be used, and the CPU otherwise.
  kCpu,
  kCuda,  // A GPU, or an error.
};

struct ChosenDevice {
  DeviceType type = DeviceType::kCpu;
  int gpu = 0;  // Of kCuda: among the visible ones.
  // Ranks of this host that compute on it, this one among them: where all see the same GPUs.
  int sharers = 1;
  std::string name = "cpu";  // A GPU's own.
  int64_t memory = 0;        // Bytes of a GPU, free or not.
  std::string uuid = {};     // A GPU's, 16 bytes: no two have the same.
  // For people, a line: which, and why where that was left open.
  std::string note;
};

// For the host's rank `local_rank` of `local_world`. Throws ConfigError where kCuda is wanted of a
// program that was built without it, DeviceError where no GPU can be used.
ChosenDevice ChooseDevice(WantedDevice wanted, int local_rank, int local_world,
                          const Gpus& gpus = FindGpus());

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CHOOSE_DEVICE_H_
