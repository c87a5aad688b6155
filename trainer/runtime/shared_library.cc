#include "trainer/runtime/shared_library.h"

#include <dlfcn.h>
#include <link.h>

namespace fsdp {

FoundLibrary FindLibrary(const std::string& file) {
  void* const handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return {"", dlerror()};
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return {file, ""};
  return {map->l_name, ""};
}

}  // namespace fsdp
