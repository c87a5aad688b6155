#include "trainer/core/cache_directory.h"

#include <unistd.h>

#include <cstdlib>

namespace fsdp {

std::string CacheDirectory(const std::string& name) {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && *xdg == '/') return std::string(xdg) + "/fsdp-train/" + name;
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.cache/fsdp-train/" + name;
  return "/tmp/fsdp-train-" + std::to_string(::getuid()) + "/" + name;
}

}  // namespace fsdp
