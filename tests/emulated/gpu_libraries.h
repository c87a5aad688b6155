// Libraries of a GPU's host that a program with the emulator has in itself: fakes of what
// trainer/runtime/gpu_libraries.h looks for. Their versions are the emulated machine's (cudart.h).
#ifndef FSDP_TRAIN_TESTS_EMULATED_GPU_LIBRARIES_H_
#define FSDP_TRAIN_TESTS_EMULATED_GPU_LIBRARIES_H_

#include <string>
#include <vector>

#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

// A fake says what it is by one of these, a static object. A program without it lacks the library.
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
