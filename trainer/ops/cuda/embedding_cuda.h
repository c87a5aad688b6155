#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_EMBEDDING_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_EMBEDDING_CUDA_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void EmbeddingForwardCuda(CudaStreamHandle stream, const ConstView& tokens,
                                        const std::optional<ConstView>& positions,
                                        const ConstView& wte, const std::optional<ConstView>& wpe,
                                        const View& y);
[[gnu::weak]] void EmbeddingBackwardCuda(CudaStreamHandle stream, const ConstView& tokens,
                                         const ConstView& order,
                                         const std::optional<ConstView>& positions,
                                         const ConstView& dy, const std::optional<View>& dwte,
                                         const std::optional<View>& dwpe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_EMBEDDING_CUDA_H_
