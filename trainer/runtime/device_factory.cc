#include "trainer/runtime/device_factory.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/cuda/cuda_device.h"

namespace fsdp {

std::unique_ptr<Device> CreateDevice(DeviceType type, DeviceOptions options) {
  if (type == DeviceType::kCpu) {
    return std::make_unique<CpuDevice>(
        CpuOptions{.spin = options.spin, .checker = std::move(options.checker)});
  }
  if (type == DeviceType::kCuda && CreateCudaDevice != nullptr) {
    const char* const synchronous = std::getenv("FSDP_TRAIN_CUDA_SYNC");
    return CreateCudaDevice(
        {.gpu = options.gpu,
         .synchronous = synchronous != nullptr && std::string_view(synchronous) == "1",
         .checker = std::move(options.checker)});
  }
  throw std::invalid_argument("[CreateDevice] " + std::string(Name(type)) +
                              " is no device to run on");
}

}  // namespace fsdp
