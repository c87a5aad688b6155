// The environment variables that CUDA reads.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_ENVIRONMENT_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_ENVIRONMENT_H_

namespace fsdp {

// Sets CUDA_DEVICE_MAX_CONNECTIONS to 32, its maximum, where it is unset. A stream beyond that
// number shares a hardware queue with another stream and waits for what that one waits for. The
// default is 8, and a rank has 8 streams beside those of NCCL and cuDNN. Call it before the first
// CUDA call, which reads the variable. Any thread may call.
void SetCudaEnvironment();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_ENVIRONMENT_H_
