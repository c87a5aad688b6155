#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_SWIGLU_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_SWIGLU_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void SwigluForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y);
[[gnu::weak]] void SwigluBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                      const ConstView& dy, const View& dx);

[[gnu::weak]] void GatedGeluForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y);
[[gnu::weak]] void GatedGeluBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                         const ConstView& dy, const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_SWIGLU_CUDA_H_
