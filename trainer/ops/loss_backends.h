// Kernels of losses: head_loss.h, logit_loss.h.
// Tests: tests/trainer/ops/class_loss_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_LOSS_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_LOSS_BACKENDS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// logit_loss.h

// The operands: z and dz of one dtype and shape, weights [rows] and loss [1], fp32. A count of
// correct classes writes its sum to `loss`.
struct LogitLoss {
  ConstView z, targets, weights;
  float scale = 1;
  std::optional<ConstView> loss_scale;
  View loss;
  std::optional<View> dz;  // Without: the loss alone.
  View workspace;
};
template <typename Visit>
void ForEachAddress(LogitLoss& loss, const Visit& visit) {
  visit(loss.z);
  visit(loss.targets);
  visit(loss.weights);
  visit(loss.loss_scale);
  visit(loss.loss);
  visit(loss.dz);
  visit(loss.workspace);
}

// The number of rows whose terms of a loss are summed first. On CUDA they are those of a block.
inline constexpr int kLossGroup = 256;
inline int64_t LossGroups(int64_t rows) { return (rows + kLossGroup - 1) / kLossGroup; }

[[gnu::weak]] void BinaryLossCuda(CudaStreamHandle stream, const LogitLoss& loss);
[[gnu::weak]] void SumOfTargetsCuda(CudaStreamHandle stream, const ConstView& targets,
                                    const ConstView& weights, const View& sum,
                                    const View& workspace);

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
