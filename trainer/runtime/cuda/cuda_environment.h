// What CUDA is told by the environment.
// Tests: tests/trainer/runtime/cuda/cuda_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_ENVIRONMENT_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_ENVIRONMENT_H_

namespace fsdp {

// Sets CUDA_DEVICE_MAX_CONNECTIONS to 32, its most, where it is unset: streams beyond that number
// share a queue of the hardware with another one, and wait for what that waits for; by default they
// are 8, and a rank has 8 streams beside those of NCCL and cuDNN. Before the first call of CUDA's,
// which reads it. From any thread.
void SetCudaEnvironment();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_CUDA_ENVIRONMENT_H_
