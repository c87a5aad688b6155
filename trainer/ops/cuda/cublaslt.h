// cuBLASLt as a GemmLibrary. Only its header is needed to build it.
// Tests: tests/trainer/ops/cublaslt_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_CUBLASLT_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_CUBLASLT_H_

#include <memory>

#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

// Opens the library for the GPU that is current. `deterministic`: only algorithms that add up the
// parts of a split k in the workspace, in fp32 and in an order of their own, and no activation of
// an unrounded sum. `multiprocessors`: the library chooses and runs its kernels for so many of the
// GPU's; 0: for all. Throws DeviceError, naming the file, where a function is missing or the
// library does not initialise.
[[gnu::weak]] std::unique_ptr<GemmLibrary> OpenCublasLt(const FoundGpuLibrary& library,
                                                        bool deterministic,
                                                        int multiprocessors = 0);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_CUBLASLT_H_
