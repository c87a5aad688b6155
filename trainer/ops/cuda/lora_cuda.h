#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_LORA_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_LORA_CUDA_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void LoraForwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& a,
                                   const ConstView& b, float scale, int64_t column, const View& u,
                                   const View& y);
// `workspace`: v, [rows, rank].
[[gnu::weak]] void LoraBackwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& u,
                                    const ConstView& a, const ConstView& b, float scale,
                                    const ConstView& dy, int64_t column, const View& dx,
                                    const std::optional<View>& da, const std::optional<View>& db,
                                    const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_LORA_CUDA_H_
