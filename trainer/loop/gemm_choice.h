// The library that multiplies matrices on a GPU in a run, and the algorithms that it uses.
// Tests: tests/e2e/cuda_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_GEMM_CHOICE_H_
#define FSDP_TRAIN_TRAINER_LOOP_GEMM_CHOICE_H_

#include <memory>

#include "trainer/loop/choice.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

// cuBLASLt, for CUDA; no function elsewhere. Throws DeviceError where there is none that can be
// used: with its name, versions and the places looked in.
FoundGpuLibrary FindGemmLibrary(DeviceType device);
// Opens it for the GPU that is current and the run's multiprocessors for products. Null where no
// library was found. Throws DeviceError.
std::unique_ptr<GemmLibrary> OpenGemmLibrary(const ResolvedRun& run);

// ChoiceId::kLibrary, into run.library. Nothing is looked for where no machine is asked.
const Choice& LibraryChoice();

// ChoiceId::kAlgorithms, into the library, before the run's own memory is allocated. Algorithms are
// found by time, once for a kind of GPU and a version of the library. The first rank with such a
// GPU keeps them in products/ of its host's CacheDirectory(), and all others with one take its own.
// A run with run.deterministic that goes on uses those of its checkpoint, or throws ConfigError
// where GPU or library are others.
const Choice& AlgorithmsChoice();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_GEMM_CHOICE_H_
