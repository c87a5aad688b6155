#include "trainer/bench/bench_library.h"

#include <algorithm>
#include <optional>

#include "trainer/engine/gemm_algorithms.h"
#include "trainer/loop/gemm_choice.h"
#include "trainer/ops/cuda/cublaslt.h"

namespace fsdp {

BenchLibrary::BenchLibrary(Device& device, Stream& stream, const std::vector<GemmShape>& shapes) {
  const FoundGpuLibrary found = FindGemmLibrary(device.type());
  if (!found.function) return;
  library_ = OpenCublasLt(found, /*deterministic=*/false);
  std::vector<GemmShape> resolved;
  for (const GemmShape& shape : shapes) {
    const std::optional<GemmShape> by = library_->Resolve(shape);
    if (by && std::find(resolved.begin(), resolved.end(), *by) == resolved.end()) {
      resolved.push_back(*by);
    }
  }
  GemmAlgorithms timed;
  TimeAlgorithms(device, resolved, *library_, &timed);
  workspace_ = device.Allocate(kGemmWorkspaceBytes);
  resources_ = {library_.get(), workspace_.data()};
  stream.Lend(&resources_);
  name_ = "cuBLASLt " + GpuLibraryVersionText(found.version);
}

}  // namespace fsdp
