#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ACTIVATIONS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ACTIVATIONS_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/activation.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void ActivationForwardCuda(CudaStreamHandle stream, Activation f, const ConstView& x,
                                         const View& y);
[[gnu::weak]] void ActivationBackwardCuda(CudaStreamHandle stream, Activation f,
                                          const ConstView& saved, const ConstView& dy,
                                          const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ACTIVATIONS_CUDA_H_
