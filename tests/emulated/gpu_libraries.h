// Fakes of the libraries that trainer/runtime/gpu_libraries.h looks up on a GPU's host, linked into
// a program with the emulator. Their versions are the emulated machine's (cudart.h).
#ifndef FSDP_TRAIN_TESTS_EMULATED_GPU_LIBRARIES_H_
#define FSDP_TRAIN_TESTS_EMULATED_GPU_LIBRARIES_H_

#include <string>
#include <vector>

#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

// A static object of this type registers a fake. A program without one lacks the library.
struct EmulatedGpuLibrary {
  struct Function {
    std::string name;
    void* address;
  };
  EmulatedGpuLibrary(GpuLibrary which, std::vector<Function> all);
};

// {"ncclSend", address of ncclSend}
#define FSDP_EMULATED_FUNCTION(name) \
  { #name, reinterpret_cast < void*>(name) }

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_GPU_LIBRARIES_H_
