// Op tests on the emulator: an operation's CUDA kernels, launched on the null stream, in both
// orders. At the end of the program its launched kernels are printed, and a kernel that a source's
// tests have to launch (LaunchedKernels) and have not is a failure, where all of them have run.
#include "tests/emulated/test_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/cudart.h"
#include "tests/emulated/kernel_list.h"
#include "tests/emulated/simt.h"
#include "tests/testing/chosen_tests.h"
#include "tests/testing/harness.h"
#include "tests/testing/test_device.h"
#include "trainer/runtime/cost.h"

namespace fsdp {
namespace {

std::optional<Launches> launched;  // By one thread at a time.

class EmulatedTestDevice final : public TestDevice {
 public:
  DeviceType type() const override { return DeviceType::kCuda; }
  std::vector<int> Threads() const override { return {1}; }
  std::string Name(int) const override { return "cuda"; }
  // Both orders where they can tell something new: kernels of fp16 are those of bf16 with another
  // type, and where tensors lie changes no order.
  int Orders(DType dtype, TensorPlace place) const override {
    return dtype == DType::kFloat16 || place == TensorPlace::kBegin ? 1 : 2;
  }
  CpuKernel Kernel(const DeviceKernels& kernels, int order) const override {
    if (!kernels.cuda) return kernels.host;
    return [launch = kernels.cuda, order](ThreadPool&) {
      SetEmulatedOrder(order == 0 ? EmulatedOrder::kGreedy : EmulatedOrder::kGreedyReverse);
      const GemmResources gemm = GemmUnderTest == nullptr ? GemmResources{} : GemmUnderTest();
      const EmulatedLaunches before = EmulatedLaunchesOfThread();
      launch({nullptr, &gemm});
      const EmulatedLaunches made = EmulatedLaunchesOfThread() - before;
      launched = {made.kernels + made.library_calls, made.copies + made.fills};
    };
  }
  std::optional<Launches> Launched() const override { return std::exchange(launched, {}); }
};

// The .cu files that the tests of "x_test" name, and x_cuda where it has kernels.
std::vector<std::string> KernelsOf(const std::string& source) {
  std::vector<std::string> kernels = LaunchedKernels::Said()[source];
  const std::string own = source.substr(0, source.rfind("_test")) + "_cuda";
  if (HasKernels(own)) kernels.push_back(own);
  return kernels;
}

class EveryKernelIsLaunched final : public ::testing::Environment {
 public:
  void TearDown() override {
    for (const EmulatedKernel* kernel : EmulatedKernels()) {
      if (kernel->launches > 0) std::printf("launched: %s\n", kernel->name().c_str());
    }
    if (GemmUnderTest != nullptr) return;  // Products are the library's.
    for (const std::string& source : testing::WholeSources()) {
      for (const std::string& kernels : KernelsOf(source)) {
        for (const std::string& wrong : NeverLaunched(kernels))
          ADD_FAILURE() << source << ": " << wrong;
      }
    }
  }
};

[[maybe_unused]] const auto* const environment =
    ::testing::AddGlobalTestEnvironment(new EveryKernelIsLaunched);

}  // namespace

const TestDevice& DeviceUnderTest() {
  static const EmulatedTestDevice device;
  return device;
}

}  // namespace fsdp
