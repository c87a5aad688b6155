#include "trainer/runtime/cuda/cuda_environment.h"

#include <cstdlib>

namespace fsdp {

void SetCudaEnvironment() { (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

}  // namespace fsdp
