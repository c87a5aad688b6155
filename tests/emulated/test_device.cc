// Op tests on the emulator: an operation's CUDA kernels, launched on the null stream, in both
// orders. At the end of the program its launched kernels are printed, and one of the .cu files
// named in FSDP_TRAIN_EMULATED_KERNELS that was never launched is a failure.
#include "tests/emulated/test_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/cudart.h"
#include "tests/emulated/kernel_list.h"
#include "tests/emulated/simt.h"
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

// Only a run of all tests launches all kernels.
bool RunsAllTests() {
  return ::testing::GTEST_FLAG(filter) == "*" && std::getenv("GTEST_TOTAL_SHARDS") == nullptr;
}

class EveryKernelIsLaunched final : public ::testing::Environment {
 public:
  void TearDown() override {
    for (const EmulatedKernel* kernel : EmulatedKernels()) {
      if (kernel->launches > 0) std::printf("launched: %s\n", kernel->name().c_str());
    }
    const char* own = std::getenv("FSDP_TRAIN_EMULATED_KERNELS");
    if (own == nullptr || !RunsAllTests()) return;
    for (const std::string& wrong : NeverLaunched(own)) ADD_FAILURE() << wrong;
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
