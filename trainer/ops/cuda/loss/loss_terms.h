// The sum of a loss: not an op itself.
// Tests: tests/trainer/ops/head_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_LOSS_LOSS_TERMS_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_LOSS_LOSS_TERMS_H_

#include <cstdint>

#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// Enqueues loss[0] += scale (terms[0] + ... + terms[n - 1]), summed in float64 by one block, in an
// order that n alone decides.
void AddLossTerms(CudaStreamHandle stream, const double* terms, int64_t n, float scale,
                  float* loss);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_LOSS_LOSS_TERMS_H_
