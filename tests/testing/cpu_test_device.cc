#include <string>
#include <vector>

#include "tests/testing/test_device.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

class CpuTestDevice final : public TestDevice {
 public:
  DeviceType type() const override { return DeviceType::kCpu; }
  std::vector<int> Threads() const override { return {1, 2, 3}; }
  std::string Name(int threads) const override { return "cpu" + std::to_string(threads); }
  CpuKernel Kernel(const DeviceKernels& kernels, int) const override {
    return kernels.cpu ? kernels.cpu : kernels.host;
  }
};

}  // namespace

const TestDevice& DeviceUnderTest() {
  static const CpuTestDevice device;
  return device;
}

}  // namespace fsdp
