#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_IMAGE_CHANNELS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_IMAGE_CHANNELS_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void MeanPixelsForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                         const View& y);
[[gnu::weak]] void MeanPixelsBackwardCuda(CudaStreamHandle stream, const ConstView& dy,
                                          const View& dx, bool adds);
[[gnu::weak]] void ScaleChannelsForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                            const ConstView& f, const View& y);
[[gnu::weak]] void ScaleChannelsBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                             const ConstView& f, const ConstView& dy,
                                             const View& dx, const View& df);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_IMAGE_CHANNELS_CUDA_H_
