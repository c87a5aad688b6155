#include "trainer/ops/cudnn/cudnn_api.h"

#include <type_traits>

#include "trainer/core/errors.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp::cudnn {
namespace {

FoundApi Find() {
  const FoundGpuLibrary library = FindGpuLibrary(GpuLibrary::kCudnn, GpuLibraryPlaces());
  if (!library.function) return {nullptr, library.why_not};
  static Api api;
  api.version = library.version;
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    using Function = std::remove_reference_t<decltype(function)>;
    function = reinterpret_cast<Function>(library.function(name));
    if (function == nullptr) missing = name;
  };
  find("cudnnCreate", api.create);
  find("cudnnSetStream", api.set_stream);
  find("cudnnGetErrorString", api.error_string);
  find("cudnnGetLastErrorString", api.last_error_string);
  find("cudnnBackendCreateDescriptor", api.create_descriptor);
  find("cudnnBackendDestroyDescriptor", api.destroy_descriptor);
  find("cudnnBackendFinalize", api.finalize);
  find("cudnnBackendSetAttribute", api.set_attribute);
  find("cudnnBackendGetAttribute", api.get_attribute);
  find("cudnnBackendExecute", api.execute);
  if (!missing.empty()) return {nullptr, library.path + " has no " + missing};
  return {&api, ""};
}

}  // namespace

const FoundApi& FindApi() {
  static const FoundApi found = Find();
  return found;
}

void Check(const Api& api, Status status, const std::string& what) {
  if (status == kSuccess) return;
  char words[512] = {};
  api.last_error_string(words, sizeof(words));
  std::string message = "cuDNN: " + what + ": " + api.error_string(status);
  if (words[0] != '\0') message += std::string(" (") + words + ")";
  throw DeviceError(message);
}

}  // namespace fsdp::cudnn
