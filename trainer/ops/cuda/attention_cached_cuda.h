#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CACHED_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CACHED_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void AttentionCachedCuda(CudaStreamHandle stream, const AttentionCachedDims& dims,
                                       const AttentionInputs& in, const View& cache_k,
                                       const View& cache_v, const View& out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CACHED_CUDA_H_
