// The libraries that a program for GPUs looks for when it runs, not when it is linked: they are
// larger than all the rest together, and most hosts have none.
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
  // Its functions by name, null where it has none of that name; of a library that is never closed.
  // Null: there is none that can be used.
  std::function<void*(const char* name)> function;
  std::string path;     // Of that one, or of one that is too old.
  int version = 0;      // 10000 major + 100 minor + patch, as it says itself.
  std::string why_not;  // What is wrong, and where it was looked for; empty: nothing.
};

// Directories, "" for those of the loader (LD_LIBRARY_PATH, ld.so.cache):
//   those of FSDP_TRAIN_CUDA_LIBS, a list with colons between them;
//   the loader's;
//   /usr/local/cuda/lib64;
//   the packages of VIRTUAL_ENV, of CONDA_PREFIX, of the python3 on PATH, and of ~/.local: what an
//   installed PyTorch computes with.
std::vector<std::string> GpuLibraryPlaces();

// The version that this program needs at least; its major version is in the file's name.
int OldestVersion(GpuLibrary library);

// The one that a program has in itself, whatever its version, in place of all files: an emulator's.
// Others do not define it.
[[gnu::weak]] FoundGpuLibrary BuiltInGpuLibrary(GpuLibrary library);

// The first that is new enough.
FoundGpuLibrary FindGpuLibrary(GpuLibrary library, const std::vector<std::string>& places);

std::string GpuLibraryVersionText(int version);  // "2.28.9".

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_GPU_LIBRARIES_H_
