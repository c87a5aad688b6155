#include "trainer/nn/image_layers.h"

#include <optional>
#include <utility>

#include "trainer/nn/layer_tools.h"
#include "trainer/ops/image_tokens.h"

namespace fsdp {
namespace {

template <typename AnyView>
AnyView Rows(const AnyView& view, int64_t cols) {
  return view.Reshape(Shape{view.NumElements() / cols, cols});
}
template <typename AnyView>
AnyView Flat(const AnyView& view) {
  return view.Reshape(Shape{view.NumElements()});
}

}  // namespace

Var Patches(Tape& tape, const View& pixels, int64_t patch, PatchOrder order) {
  const Shape& images = pixels.shape;
  const int64_t rows = images[0] * (images[1] / patch) * (images[2] / patch);
  Var x = tape.NewVar(Shape{rows, patch * patch * images[3]}, tape.activations());
  x.grad = nullptr;
  CutPatches(tape.stream(), pixels, patch, order, x.view());
  return x;
}

Var JoinTokens(Tape& tape, const Var& x, const Parameter& first, const Parameter& positions,
               int64_t rows) {
  const int64_t cols = x.shape[1];
  Var y = tape.NewVar(Shape{x.shape[0] + rows, cols}, x.dtype);
  JoinTokensForward(tape.stream(), x.view(), Flat(first.value()), Rows(positions.value(), cols),
                    rows, y.view());
  tape.Push([&tape, &first, &positions, rows, x, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = tape.New(x.shape, x.dtype);
    std::optional<View> dfirst = GradOf(first), dpositions = GradOf(positions);
    if (dfirst) dfirst = Flat(*dfirst);
    if (dpositions) dpositions = Rows(*dpositions, x.shape[1]);
    JoinTokensBackward(tape.stream(), dy->view(), rows, dx->view(), dfirst, dpositions);
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

Var FirstTokens(Tape& tape, const Var& x, int64_t rows) {
  Var y = tape.NewVar(Shape{rows, x.shape[1]}, x.dtype);
  FirstTokensForward(tape.stream(), x.view(), y.view());
  tape.Push([&tape, shape = x.shape, dtype = x.dtype, x_grad = x.grad, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = tape.New(shape, dtype);
    FirstTokensBackward(tape.stream(), dy->view(), dx->view());
    tape.Add(x_grad, std::move(dx));
  });
  return y;
}

}  // namespace fsdp
