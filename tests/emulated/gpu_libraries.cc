#include "tests/emulated/gpu_libraries.h"

#include <map>

#include "tests/emulated/cudart.h"

namespace fsdp {
namespace {

using Functions = std::map<std::string, void*>;

std::map<GpuLibrary, Functions>& Fakes() {
  static std::map<GpuLibrary, Functions> fakes;
  return fakes;
}

int VersionOf(GpuLibrary library) {
  const EmulatedGpus gpus = TheEmulatedGpus();
  switch (library) {
    case GpuLibrary::kCublasLt:
      return gpus.cublaslt;
    case GpuLibrary::kCudnn:
      return gpus.cudnn;
    case GpuLibrary::kNccl:
      return gpus.nccl;
  }
  return 0;
}

}  // namespace

EmulatedGpuLibrary::EmulatedGpuLibrary(GpuLibrary which, std::vector<Function> all) {
  for (const Function& function : all) Fakes()[which][function.name] = function.address;
}

FoundGpuLibrary BuiltInGpuLibrary(GpuLibrary library) {
  const auto fake = Fakes().find(library);
  if (fake == Fakes().end()) return {};
  return {[&functions = fake->second](const char* name) -> void* {
            const auto at = functions.find(name);
            return at == functions.end() ? nullptr : at->second;
          },
          std::string("emulated ") + FileOf(library), VersionOf(library), ""};
}

}  // namespace fsdp
