// Kernels of linear layers: linear.h, lora.h.
// Tests: tests/trainer/ops/linear_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LINEAR_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_LINEAR_BACKENDS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// linear.h
[[gnu::weak]] void LinearForwardCuda(CudaStreamHandle stream, WeightLayout layout,
                                     const ConstView& x, const ConstView& w,
                                     const std::optional<ConstView>& b,
                                     const std::optional<ConstView>& residual,
                                     const std::optional<View>& u, const View& y);
[[gnu::weak]] void LinearBackwardCuda(CudaStreamHandle stream, WeightLayout layout,
                                      const std::optional<ConstView>& u, const ConstView& x,
                                      const ConstView& w, const ConstView& dy,
                                      const std::optional<View>& dx, const std::optional<View>& dw,
                                      const std::optional<View>& db);

// lora.h
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

#endif  // FSDP_TRAIN_TRAINER_OPS_LINEAR_BACKENDS_H_
