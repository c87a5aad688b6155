// Kernels of images: image_channels.h, image_tokens.h.
// Tests: tests/trainer/ops/image_channels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_IMAGE_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_IMAGE_BACKENDS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/patch_order.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// image_channels.h
[[gnu::weak]] void MeanPixelsForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                         const View& y);
[[gnu::weak]] void MeanPixelsBackwardCuda(CudaStreamHandle stream, const ConstView& dy,
                                          const View& dx, bool adds);
[[gnu::weak]] void ScaleChannelsForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                            const ConstView& f, const View& y);
[[gnu::weak]] void ScaleChannelsBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                             const ConstView& f, const ConstView& dy,
                                             const View& dx, const View& df);

// image_tokens.h
[[gnu::weak]] void CutPatchesCuda(CudaStreamHandle stream, const ConstView& pixels, int64_t patch,
                                  PatchOrder order, const View& patches);
[[gnu::weak]] void JoinTokensForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                         const ConstView& first, const ConstView& positions,
                                         int64_t samples, const View& y);
[[gnu::weak]] void JoinTokensBackwardCuda(CudaStreamHandle stream, const ConstView& dy,
                                          int64_t samples, const View& dx,
                                          const std::optional<View>& dfirst,
                                          const std::optional<View>& dpositions);
[[gnu::weak]] void FirstTokensForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                          const View& y);
[[gnu::weak]] void FirstTokensBackwardCuda(CudaStreamHandle stream, const ConstView& dy,
                                           const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_IMAGE_BACKENDS_H_
