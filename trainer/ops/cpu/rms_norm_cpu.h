#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_RMS_NORM_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_RMS_NORM_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Row i of outer * inner: inner rows end to end, then a step of `stride` to the next ones.
template <typename T>
struct NormRows {
  T* data;
  int64_t stride;  // Elements.
};
struct NormShape {
  int64_t outer, inner, cols;

  int64_t rows() const { return outer * inner; }
  int64_t At(int64_t row, int64_t stride) const {
    return row / inner * stride + row % inner * cols;
  }
};

void RmsNormForwardCpu(ThreadPool& pool, const NormShape& shape, NormRows<const float> x,
                       const float* w, float eps, NormRows<float> y, float* r);

// `partial`: [blocks, cols], the sums for dw of each block of rows. dw may be null.
void RmsNormBackwardCpu(ThreadPool& pool, const NormShape& shape, NormRows<const float> x,
                        const float* w, const float* r, NormRows<const float> dy, int64_t blocks,
                        bool add, NormRows<float> dx, float* dw, float* partial);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_RMS_NORM_CPU_H_
