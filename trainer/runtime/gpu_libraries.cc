#include "trainer/runtime/gpu_libraries.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Kind {
  const char* file;
  const char* version_function;
  bool by_result;  // size_t f(); else result f(int*).
  int oldest;      // Oldest version of the major version in the file's name.
};
const Kind& KindOf(GpuLibrary library) {
  static constexpr Kind kKinds[] = {{"libcublasLt.so.13", "cublasLtGetVersion", true, 130000},
                                    {"libcudnn.so.9", "cudnnGetVersion", true, 91002},
                                    {"libnccl.so.2", "ncclGetVersion", false, 22800}};
  return kKinds[static_cast<int>(library)];
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ':');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// Where pip puts them below a prefix, in an environment of conda's, too.
void AddPackages(const std::string& prefix, std::vector<std::string>& places) {
  if (prefix.empty()) return;
  for (const char* packages : {"site-packages", "dist-packages"}) {
    glob_t found = {};
    const std::string pattern = prefix + "/lib/python3*/" + packages + "/nvidia/*/lib";
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      places.insert(places.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    globfree(&found);
  }
}

// Where the python3 on PATH lives, by its name there and by that of the file it is.
std::vector<std::string> PythonPrefixes() {
  for (const std::string& directory : Split(Environment("PATH"))) {
    const fs::path python = fs::path(directory) / "python3";
    std::error_code none;
    if (!fs::exists(python, none)) continue;
    const fs::path file = fs::canonical(python, none);
    return {python.parent_path().parent_path().string(), file.parent_path().parent_path().string(),
            "/usr/local"};
  }
  return {};
}

int VersionOf(void* handle, const Kind& kind) {
  void* const function = dlsym(handle, kind.version_function);
  if (function == nullptr) return 0;
  if (kind.by_result) return static_cast<int>(reinterpret_cast<size_t (*)()>(function)());
  int version = 0;
  return reinterpret_cast<int (*)(int*)>(function)(&version) == 0 ? version : 0;
}

std::string PathOf(void* handle, const std::string& asked) {
  const link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : asked;
}

}  // namespace

const char* FileOf(GpuLibrary library) { return KindOf(library).file; }
int OldestVersion(GpuLibrary library) { return KindOf(library).oldest; }

std::vector<std::string> GpuLibraryPlaces() {
  std::vector<std::string> places = Split(Environment("FSDP_TRAIN_CUDA_LIBS"));
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  AddPackages(program.parent_path().parent_path().string(), places);
  AddPackages(Environment("VIRTUAL_ENV"), places);
  AddPackages(Environment("CONDA_PREFIX"), places);
  places.insert(places.end(), {"", "/usr/local/cuda/lib64"});
  for (const std::string& prefix : PythonPrefixes()) AddPackages(prefix, places);
  if (const std::string home = Environment("HOME"); !home.empty()) {
    AddPackages(home + "/.local", places);
  }
  std::vector<std::string> once;
  for (const std::string& place : places) {
    if (std::find(once.begin(), once.end(), place) == once.end()) once.push_back(place);
  }
  return once;
}

FoundGpuLibrary FindGpuLibrary(GpuLibrary library, const std::vector<std::string>& places) {
  const Kind& kind = KindOf(library);
  FoundGpuLibrary found;
  std::string wrong, looked;
  const auto complain = [&](const std::string& what) {
    wrong += (wrong.empty() ? "" : "; ") + what;
  };
  const auto too_old = [&](const std::string& path, int version) {
    complain(path +
             (version == 0 ? " does not say its version"
                           : " is version " + GpuLibraryVersionText(version)) +
             ", and this program needs " + GpuLibraryVersionText(kind.oldest) + " or newer");
    found.path = path;
    found.version = version;
  };
  if (BuiltInGpuLibrary != nullptr) {
    FoundGpuLibrary built_in = BuiltInGpuLibrary(library);
    if (built_in.version >= kind.oldest) return built_in;
    if (built_in.version != 0) too_old(built_in.path, built_in.version);
    looked = "this program";
  } else {
    for (const std::string& place : places) {
      looked += (looked.empty() ? "" : ", ") +
                (place.empty() ? std::string("the loader's directories") : place);
      const std::string file = place.empty() ? kind.file : place + "/" + kind.file;
      std::error_code none;
      if (!place.empty() && !fs::exists(file, none)) continue;
      void* const handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
      if (handle == nullptr) {
        const char* const error = dlerror();
        if (!place.empty()) complain(error);
        continue;
      }
      const int version = VersionOf(handle, kind);
      const std::string path = PathOf(handle, file);
      if (version >= kind.oldest) {
        return {[handle](const char* name) { return dlsym(handle, name); }, path, version, ""};
      }
      too_old(path, version);
      dlclose(handle);
    }
  }
  found.why_not = (wrong.empty() ? std::string(kind.file) + " is not there" : wrong) +
                  " (looked in " + looked +
                  "; FSDP_TRAIN_CUDA_LIBS adds directories, before the others)";
  return found;
}

std::string GpuLibraryVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace fsdp
