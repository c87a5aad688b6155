// Op tests whose products are cuBLASLt's, as it is emulated. Those that it has no algorithm for
// are kernels of ours all the same.
#include <cstdlib>

#include "tests/emulated/test_device.h"
#include "trainer/ops/cuda/cublaslt.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

GemmResources GemmUnderTest() {
  static GemmLibrary* const library =
      OpenCublasLt(FindGpuLibrary(GpuLibrary::kCublasLt, {}), /*deterministic=*/false).release();
  static auto* const workspace =
      static_cast<std::byte*>(std::aligned_alloc(256, kGemmWorkspaceBytes));
  return {library, workspace};
}

}  // namespace fsdp
