#include "trainer/nn/class_losses.h"

#include <optional>
#include <utility>

#include "trainer/nn/layer_tools.h"
#include "trainer/ops/logit_loss.h"

namespace fsdp {
namespace {

View Flat(const View& view) { return view.Reshape(Shape{view.NumElements()}); }

struct LossOps {
  void (*forward)(Stream& stream, ConstView z, ConstView targets, ConstView weights, float scale,
                  View loss, View workspace);
  void (*forward_backward)(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                           float scale, const std::optional<ConstView>& loss_scale, View loss,
                           View dz, View workspace);
  void (*second_sum)(Stream& stream, ConstView z, ConstView targets, ConstView weights, View sum,
                     View workspace);
  int64_t (*workspace_bytes)(int64_t rows);
};

void SumOfLabels(Stream& stream, ConstView, ConstView targets, ConstView weights, View sum,
                 View workspace) {
  SumOfTargets(stream, targets, weights, sum, workspace);
}

// `shape`: that of the logits for the ops, rows first.
void Loss(Tape& tape, const LossOps& ops, const Var& logits, const Shape& shape,
          const View& targets, const View& weights, float scale, const View& loss) {
  if (!tape.recording()) {
    const Workspace workspace(tape, ops.workspace_bytes(shape[0]));
    const View z = logits.view().Reshape(shape);
    const bool two = loss.NumElements() == 2;
    ops.forward(tape.stream(), z, Flat(targets), Flat(weights), scale,
                two ? loss.Slice(0, 1) : loss, workspace.view());
    if (two) {
      ops.second_sum(tape.stream(), z, Flat(targets), Flat(weights), loss.Slice(1, 1),
                     workspace.view());
    }
    return;
  }
  tape.Push(
      [&tape, ops, logits, shape, targets = Flat(targets), weights = Flat(weights), scale, loss] {
        const Workspace workspace(tape, ops.workspace_bytes(shape[0]));
        TensorPtr dz = tape.New(logits.shape, logits.dtype);
        ops.forward_backward(tape.stream(), logits.view().Reshape(shape), targets, weights, scale,
                             tape.loss_scale(), loss, dz->view().Reshape(shape), workspace.view());
        tape.Add(logits.grad, std::move(dz));
      });
}

}  // namespace

void ClassLoss(Tape& tape, const Var& logits, const View& targets, const View& weights, float scale,
               View loss) {
  constexpr LossOps kOps{ClassLossForward, ClassLossForwardBackward, CountCorrectClasses,
                         ClassLossWorkspaceBytes};
  Loss(tape, kOps, logits, logits.shape, targets, weights, scale, loss);
}

void BinaryLoss(Tape& tape, const Var& logits, const View& targets, const View& weights,
                float scale, View loss) {
  constexpr LossOps kOps{BinaryLossForward, BinaryLossForwardBackward, SumOfLabels,
                         BinaryLossWorkspaceBytes};
  Loss(tape, kOps, logits, Shape{logits.shape.NumElements()}, targets, weights, scale, loss);
}

}  // namespace fsdp
