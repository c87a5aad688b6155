#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void AttentionForwardCuda(CudaStreamHandle stream, const AttentionDims& dims,
                                        const AttentionInputs& in, const View& out,
                                        const View& lse);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ATTENTION_CUDA_H_
