// GPU libraries that the program looks for when it runs, not when it is linked: they are larger
// than all the rest together, and most hosts have none.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_GPU_LIBRARIES_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_GPU_LIBRARIES_H_

#include <functional>
#include <string>
#include <vector>

namespace fsdp {

enum class GpuLibrary { kCublasLt, kCudnn, kNccl };
inline constexpr GpuLibrary kGpuLibraries[] = {GpuLibrary::kCublasLt, GpuLibrary::kCudnn,
                                               GpuLibrary::kNccl};

const char* FileOf(GpuLibrary library);  // "libnccl.so.2".

struct FoundGpuLibrary {
  // Returns the library's function of a name, or null where it has none. The library is never
  // closed. A null `function`: no library can be used.
  std::function<void*(const char* name)> function;
  std::string path;     // The file's path, also where the library is too old.
  int version = 0;      // 10000 major + 100 minor + patch, from the library itself.
  std::string why_not;  // The fault, and the places that were searched; empty: none.
};

// Directories, "" for those of the loader (LD_LIBRARY_PATH, ld.so.cache):
//   those of FSDP_TRAIN_CUDA_LIBS, a list with colons between them;
//   the packages of the environment that pip installed the program into (../lib/python3* from its
//   own directory), of VIRTUAL_ENV and of CONDA_PREFIX;
//   the loader's;
//   /usr/local/cuda/lib64;
//   the packages of the python3 on PATH and of ~/.local: what an installed PyTorch computes with.
std::vector<std::string> GpuLibraryPlaces();

// The oldest version that this program can use. The file's name has the major version.
int OldestVersion(GpuLibrary library);

// A library inside the program, whatever its version, in place of all files: an emulator's. Other
// programs do not define this function.
[[gnu::weak]] FoundGpuLibrary BuiltInGpuLibrary(GpuLibrary library);

// The first library in `places` that is new enough.
FoundGpuLibrary FindGpuLibrary(GpuLibrary library, const std::vector<std::string>& places);

std::string GpuLibraryVersionText(int version);  // "2.28.9".

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_GPU_LIBRARIES_H_
