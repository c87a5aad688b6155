// Makes the device of a run, by type. Code above this room names none of the devices' classes.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_

#include <memory>

#include "trainer/runtime/device.h"

namespace fsdp {

class StreamChecker;

struct DeviceOptions {
  bool spin = false;  // Compute threads of the CPU poll between loops: see ThreadPool.
  std::shared_ptr<StreamChecker> checker = nullptr;  // Null: no checking.
  int gpu = 0;                                       // Index among the visible GPUs.
};

// Throws DeviceError. Throws std::invalid_argument for the simulated device, which is made for a
// described machine, and for CUDA in a program built without it. With FSDP_TRAIN_CUDA_SYNC=1 in the
// environment a CUDA device waits after each operation.
std::unique_ptr<Device> CreateDevice(DeviceType type, DeviceOptions options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_
