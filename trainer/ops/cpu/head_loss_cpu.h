#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct HeadLossShape {
  int64_t rows, cols, vocab;
  int64_t chunk;  // Rows.
};

// dx: null for the loss alone. dw: may be null. nll: [chunk], logits: [chunk, vocab], both scratch.
void HeadLossCpu(ThreadPool& pool, const HeadLossShape& shape, const float* x, const float* w,
                 const int32_t* targets, const float* weights, float scale, float* loss, float* dx,
                 float* dw, double* nll, float* logits);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_LOSS_CPU_H_
