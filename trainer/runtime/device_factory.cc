#include "trainer/runtime/device_factory.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {

std::unique_ptr<Device> CreateDevice(DeviceType type, DeviceOptions options) {
  if (type == DeviceType::kCpu) {
    return std::make_unique<CpuDevice>(
        CpuOptions{.spin = options.spin, .checker = std::move(options.checker)});
  }
  throw std::invalid_argument("[CreateDevice] " + std::string(Name(type)) +
                              " is no device to run on");
}

}  // namespace fsdp
