// Op tests on a GPU, the first that is visible: an operation's CUDA kernels, each twice, which must
// leave the same bits. The emulator's runtime takes the place of a GPU's where this is tested.
//
// FSDP_TRAIN_TEST_PRODUCTS=cublaslt: products are cuBLASLt's where it takes them, and each
// operation runs once, for an algorithm may add up in the order in which blocks come;
// cublaslt-deterministic: by such as do not, twice again. How many were its own is printed at the
// end.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/guarded_memory.h"
#include "tests/testing/test_device.h"
#include "trainer/core/errors.h"
#include "trainer/ops/cuda/cublaslt.h"
#include "trainer/runtime/cuda_stream_handle.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

constexpr std::string_view kLibrary = "cublaslt", kDeterministic = "cublaslt-deterministic";

std::string_view Products() {
  const char* const products = std::getenv("FSDP_TRAIN_TEST_PRODUCTS");
  return products == nullptr ? "" : products;
}

GemmLibrary* library = nullptr;  // Opened by the first test that runs.

// The whole program's one set of resources for products.
GemmResources GemmUnderTest() {
  static const GemmResources resources = [] {
    if (Products().empty()) return GemmResources{};
    if (Products() != kLibrary && Products() != kDeterministic) {
      throw DeviceError("FSDP_TRAIN_TEST_PRODUCTS is " + std::string(Products()));
    }
    const FoundGpuLibrary found = FindGpuLibrary(GpuLibrary::kCublasLt, GpuLibraryPlaces());
    if (!found.function) throw DeviceError(found.why_not);
    void* workspace = nullptr;
    CheckTestCall(cudaMalloc(&workspace, kGemmWorkspaceBytes), "cudaMalloc");
    library = OpenCublasLt(found, Products() == kDeterministic).release();
    return GemmResources{library, static_cast<std::byte*>(workspace)};
  }();
  return resources;
}

class SaysWhoseProducts final : public ::testing::Environment {
 public:
  void TearDown() override {
    if (Products().empty()) return;
    int64_t calls = 0;
    if (library != nullptr) {
      for (const GemmLibrary::Usage& usage : library->Usages()) calls += usage.calls;
    }
    std::printf("cuBLASLt: %lld products\n", static_cast<long long>(calls));
  }
};

[[maybe_unused]] const auto* const environment =
    ::testing::AddGlobalTestEnvironment(new SaysWhoseProducts);

class CudaTestDevice final : public TestDevice {
 public:
  DeviceType type() const override { return DeviceType::kCuda; }
  std::vector<int> Threads() const override { return {1}; }
  std::string Name(int) const override { return "cuda"; }
  int Orders(DType, TensorPlace) const override { return Products() == kLibrary ? 1 : 2; }

  std::unique_ptr<TestMemory> CreateMemory(Device&) const override {
    return CreateGuardedMemory(TheStream());
  }

  // No work of the host: none of it may touch this memory.
  CpuKernel Kernel(const DeviceKernels& kernels, int) const override {
    if (!kernels.cuda) return nullptr;
    return [launch = kernels.cuda](ThreadPool&) {
      static const GemmResources gemm = GemmUnderTest();
      launch({TheStream(), &gemm});
      CheckTestCall(cudaStreamSynchronize(TheStream()), "a kernel");
    };
  }

 private:
  // One for the whole program, made when the first test asks: without a GPU each of them fails.
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
