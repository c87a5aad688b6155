// The devices that a run may be on, by type. Nobody above names one of their classes.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_

#include <memory>

#include "trainer/runtime/device.h"

namespace fsdp {

struct DeviceOptions {
  bool spin = false;  // Compute threads of the CPU poll between loops: see ThreadPool.
  std::shared_ptr<StreamChecker> checker = nullptr;  // Null: no checking.
  int gpu = 0;                                       // Of the visible ones.
};

// std::invalid_argument for the simulated device, which is made for a described machine, by itself,
// and for CUDA where the program was built without it. Throws DeviceError. With
// FSDP_TRAIN_CUDA_SYNC=1 in the environment a CUDA device waits after each operation.
std::unique_ptr<Device> CreateDevice(DeviceType type, DeviceOptions options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_
