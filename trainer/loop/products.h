// What multiplies matrices in a run: on a GPU a library, and the algorithms that it uses.
// Tests: tests/e2e/cuda_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_PRODUCTS_H_
#define FSDP_TRAIN_TRAINER_LOOP_PRODUCTS_H_

#include <memory>

#include "trainer/loop/choice.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

// cuBLASLt, for CUDA; no function elsewhere. Throws DeviceError where there is none that can be
// used: with its name, versions and the places looked in.
FoundGpuLibrary FindGemmLibrary(DeviceType device);
// Opens it for the GPU that is current. Null where no library was found. Throws DeviceError.
std::unique_ptr<GemmLibrary> OpenGemmLibrary(const FoundGpuLibrary& found, bool deterministic);

// ChoiceId::kLibrary, into run.library. Nothing is looked for where no machine is asked.
const Choice& LibraryChoice();

// ChoiceId::kAlgorithms, into the library. They are found by time, once for a kind of GPU and a
// version of the library: then they are in products/ of the CacheDirectory() of the host of the
// first rank with such a GPU; all others with one take up what it has. Before the run's own memory
// is allocated. A run with run.deterministic that goes on uses those of its checkpoint, or throws
// ConfigError where GPU or library are others.
const Choice& AlgorithmsChoice();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PRODUCTS_H_
