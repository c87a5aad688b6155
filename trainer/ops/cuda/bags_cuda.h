#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_BAGS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_BAGS_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void PoolBagsCuda(CudaStreamHandle stream, const ConstView& vectors,
                                const ConstView& places, const ConstView& first, const View& out);
[[gnu::weak]] void PoolBagsBackwardCuda(CudaStreamHandle stream, const ConstView& d,
                                        const ConstView& places, const ConstView& order,
                                        const ConstView& first, const View& sums);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_BAGS_CUDA_H_
