// Chooses the device of its host that a rank computes on.
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
  int gpu = 0;  // kCuda: index among the visible GPUs.
  // Ranks of this host that compute on the device, this one included, if all see the same GPUs.
  int sharers = 1;
  std::string name = "cpu";  // "cpu" or the GPU's name.
  int64_t memory = 0;        // A GPU's bytes, free or not.
  std::string uuid = {};     // A GPU's 16 bytes, which no other has.
  // One line for people: the device, and for kAuto the reason.
  std::string note;
};

// Chooses for the host's rank `local_rank` of `local_world`. kCuda throws ConfigError in a program
// that was built without CUDA, and DeviceError where no GPU can be used.
ChosenDevice ChooseDevice(WantedDevice wanted, int local_rank, int local_world,
                          const Gpus& gpus = FindGpus());

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CHOOSE_DEVICE_H_
