// Kernels of mixtures of experts: router.h, expert_rows.h, grouped_linear.h, and the weighted units
// of swiglu.h.
// Tests: tests/trainer/ops/router_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_EXPERT_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_EXPERT_BACKENDS_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/grouped_linear.h"
#include "trainer/ops/router.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// router.h
[[gnu::weak]] void ChooseExpertsCuda(CudaStreamHandle stream, const ConstView& logits,
                                     const std::optional<ConstView>& bias, const ConstView& lengths,
                                     const RouterOptions& options, const View& choices);
[[gnu::weak]] void RouterWeightsCuda(CudaStreamHandle stream, const ConstView& logits,
                                     const ConstView& choices, const ConstView& places,
                                     const RouterOptions& options, const View& weights);
[[gnu::weak]] void SampleWeightsCuda(CudaStreamHandle stream, const ConstView& weights,
                                     const View& sums);
[[gnu::weak]] void TallyRoutingCuda(CudaStreamHandle stream, const ConstView& logits,
                                    const ConstView& choices, const ConstView& lengths,
                                    const ConstView& sample_weights,
                                    const std::optional<ConstView>& shares,
                                    const RouterOptions& options, const View& sample_shares,
                                    const View& sample_losses, const View& tally);
[[gnu::weak]] void RouterBackwardCuda(CudaStreamHandle stream, const ConstView& logits,
                                      const ConstView& choices, const ConstView& places,
                                      const ConstView& row_gradients, const ConstView& lengths,
                                      const ConstView& sample_weights, const ConstView& shares,
                                      const RouterBalance& balance,
                                      const std::optional<ConstView>& loss_scale,
                                      const RouterOptions& options, const View& dlogits);

// expert_rows.h
[[gnu::weak]] void GroupRowsCuda(CudaStreamHandle stream, const ConstView& choices,
                                 const View& offsets, const View& tokens, const View& places);
[[gnu::weak]] void CombineRowsCuda(CudaStreamHandle stream, const ConstView& rows,
                                   const ConstView& places, const std::optional<ConstView>& base,
                                   const View& out);

// grouped_linear.h
[[gnu::weak]] void GroupedForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                      const std::optional<ConstView>& sources, const ConstView& w,
                                      const ConstView& offsets, const View& y,
                                      const GroupedOptions& options);
[[gnu::weak]] void GroupedDxCuda(CudaStreamHandle stream, const ConstView& dy,
                                 const std::optional<ConstView>& sources, const ConstView& w,
                                 const ConstView& offsets, const View& dx,
                                 const GroupedOptions& options);
[[gnu::weak]] void GroupedDwCuda(CudaStreamHandle stream, const ConstView& dy,
                                 const std::optional<ConstView>& dy_sources, const ConstView& x,
                                 const std::optional<ConstView>& x_sources,
                                 const ConstView& offsets, const View& dw,
                                 const GroupedOptions& options);

// swiglu.h
[[gnu::weak]] void WeightedSwigluForwardCuda(CudaStreamHandle stream, const ConstView& x,
                                             const ConstView& weights,
                                             const std::optional<ConstView>& offsets,
                                             const View& y);
[[gnu::weak]] void WeightedSwigluBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                              const ConstView& weights,
                                              const std::optional<ConstView>& offsets,
                                              const ConstView& dy, const View& dx,
                                              const View& dweights);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_EXPERT_BACKENDS_H_
