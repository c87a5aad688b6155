#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_FEATURE_VECTORS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_FEATURE_VECTORS_CUDA_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void JoinColumnsCuda(CudaStreamHandle stream, const ConstView& a, const ConstView& b,
                                   const View& y);
[[gnu::weak]] void SplitColumnsCuda(CudaStreamHandle stream, const ConstView& y, const View& a,
                                    const View& b);
[[gnu::weak]] void SwapVectorsCuda(CudaStreamHandle stream, const ConstView& x, int64_t samples,
                                   const View& y);
[[gnu::weak]] void PairDotsForwardCuda(CudaStreamHandle stream, const ConstView& x, float scale,
                                       const View& y);
[[gnu::weak]] void PairDotsBackwardCuda(CudaStreamHandle stream, const ConstView& x, float scale,
                                        const ConstView& dy, const View& dx);
[[gnu::weak]] void MultiplyForwardCuda(CudaStreamHandle stream, const ConstView& a,
                                       const ConstView& b, const View& y);
[[gnu::weak]] void MultiplyBackwardCuda(CudaStreamHandle stream, const ConstView& a,
                                        const ConstView& b, const ConstView& dy, const View& da,
                                        const View& db);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_FEATURE_VECTORS_CUDA_H_
