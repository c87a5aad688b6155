// Op tests whose products the emulated cuBLASLt multiplies. Kernels of ours multiply those for
// which it has no algorithm. So at the end each epilogue named in FSDP_TRAIN_EMULATED_EPILOGUES
// must have been some call's.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "tests/emulated/cublaslt.h"
#include "tests/emulated/test_device.h"
#include "tests/testing/chosen_tests.h"
#include "trainer/ops/cuda/cublaslt.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

class EveryEpilogueIsCalled final : public ::testing::Environment {
 public:
  void TearDown() override {
    std::map<int, int> calls;
    for (const EmulatedMatmul& matmul : TakeEmulatedMatmuls()) ++calls[matmul.epilogue];
    for (const auto& [epilogue, n] : calls) std::printf("epilogue %d: %d calls\n", epilogue, n);
    const char* const wanted = std::getenv("FSDP_TRAIN_EMULATED_EPILOGUES");
    if (wanted == nullptr || !testing::WholeSources().contains("linear_test")) return;
    std::istringstream words(wanted);
    for (int epilogue = 0; words >> epilogue;) {
      EXPECT_GT(calls[epilogue], 0) << "no product had epilogue " << epilogue;
    }
  }
};

[[maybe_unused]] const auto* const environment =
    ::testing::AddGlobalTestEnvironment(new EveryEpilogueIsCalled);

}  // namespace

GemmResources GemmUnderTest() {
  static GemmLibrary* const library =
      OpenCublasLt(FindGpuLibrary(GpuLibrary::kCublasLt, {}), /*deterministic=*/false).release();
  // Behind its end there is nothing.
  static auto* const workspace = [] {
    void* const all = mmap(nullptr, 2 * kGemmWorkspaceBytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(all, kGemmWorkspaceBytes, PROT_READ | PROT_WRITE);
    return static_cast<std::byte*>(all);
  }();
  return {library, workspace};
}

}  // namespace fsdp
