// The devices that a run may be on, by type. Nobody above names one of their classes.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_

#include <memory>

#include "trainer/runtime/device.h"

namespace fsdp {

struct DeviceOptions {
  bool spin = false;  // Compute threads of the CPU poll between loops: see ThreadPool.
  std::shared_ptr<StreamChecker> checker = nullptr;  // Null: no checking.
};

// std::invalid_argument for the simulated device: it is made for a described machine, by itself.
std::unique_ptr<Device> CreateDevice(DeviceType type, DeviceOptions options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_FACTORY_H_
