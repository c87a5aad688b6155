// Op tests on a GPU, the first that is visible: an operation's CUDA kernels, each twice, which must
// leave the same bits. The emulator's runtime takes the place of a GPU's where this is tested.
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/guarded_memory.h"
#include "tests/testing/test_device.h"

namespace fsdp {
namespace {

class CudaTestDevice final : public TestDevice {
 public:
  DeviceType type() const override { return DeviceType::kCuda; }
  std::vector<int> Threads() const override { return {1}; }
  std::string Name(int) const override { return "cuda"; }
  int Orders() const override { return 2; }

  std::unique_ptr<TestMemory> CreateMemory(Device&) const override {
    return CreateGuardedMemory(TheStream());
  }

  // No work of the host: none of it may touch this memory.
  CpuKernel Kernel(const DeviceKernels& kernels, int) const override {
    if (!kernels.cuda) return nullptr;
    return [launch = kernels.cuda](ThreadPool&) {
      launch(TheStream());
      CheckTestCall(cudaStreamSynchronize(TheStream()), "a kernel");
    };
  }

 private:
  // Of the whole program, and made when the first test asks: without a GPU each of them fails.
  static cudaStream_t TheStream() {
    static const cudaStream_t stream = [] {
      cudaStream_t made = nullptr;
      CheckTestCall(cudaSetDevice(0), "cudaSetDevice");
      CheckTestCall(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, 0),
                    "cudaStreamCreateWithPriority");
      return made;
    }();
    return stream;
  }
};

}  // namespace

const TestDevice& DeviceUnderTest() {
  static const CudaTestDevice device;
  return device;
}

}  // namespace fsdp
