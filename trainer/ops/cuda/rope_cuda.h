#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ROPE_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ROPE_CUDA_H_

#include <cstdint>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/heads.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// The most frequencies of one launch, which are among its arguments.
inline constexpr int64_t kRopeFrequencies = 64;

[[gnu::weak]] void RopeTableCuda(CudaStreamHandle stream, const std::vector<double>& frequencies,
                                 double factor, const View& table);
[[gnu::weak]] void RopeCuda(CudaStreamHandle stream, const ConstView& table,
                            const ConstView& positions, bool backward, const Heads& x);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ROPE_CUDA_H_
