#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_IMAGE_TOKENS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_IMAGE_TOKENS_CUDA_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/patch_order.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

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

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_IMAGE_TOKENS_CUDA_H_
