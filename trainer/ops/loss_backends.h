// Kernels of losses: binary_loss.h, class_loss.h, head_loss.h.
// Tests: tests/trainer/ops/binary_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LOSS_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_LOSS_BACKENDS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/logit_loss.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// binary_loss.h
[[gnu::weak]] void BinaryLossCuda(CudaStreamHandle stream, const LogitLoss& loss);
[[gnu::weak]] void SumOfTargetsCuda(CudaStreamHandle stream, const ConstView& targets,
                                    const ConstView& weights, const View& sum,
                                    const View& workspace);

// class_loss.h
[[gnu::weak]] void ClassLossCuda(CudaStreamHandle stream, const LogitLoss& loss);
[[gnu::weak]] void CountCorrectClassesCuda(CudaStreamHandle stream, const LogitLoss& count);

// head_loss.h
// The parts of the workspace.
struct HeadLossBuffers {
  // [a chunk's rows, columns >= vocab], of w's dtype: a chunk's logits, then g. The matrix and each
  // of its rows begin at multiples of 16 bytes.
  View logits;
  View terms;  // weights[i] nll[i] of all rows, float64, as bytes.
  // [vocab, cols], fp32: the sum over chunks, where it is not in dw itself.
  std::optional<View> dw_sums;
};
template <typename Visit>
void ForEachAddress(HeadLossBuffers& buffers, const Visit& visit) {
  visit(buffers.logits);
  visit(buffers.terms);
  visit(buffers.dw_sums);
}

// Without dx: the loss alone.
[[gnu::weak]] void HeadLossCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& w,
                                const ConstView& targets, const ConstView& weights, float scale,
                                const std::optional<ConstView>& loss_scale, const View& loss,
                                const std::optional<View>& dx, const std::optional<View>& dw,
                                const HeadLossBuffers& buffers);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_LOSS_BACKENDS_H_
