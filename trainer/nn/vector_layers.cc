#include "trainer/nn/vector_layers.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/nn/layer_tools.h"
#include "trainer/ops/convolution.h"
#include "trainer/ops/feature_vectors.h"

namespace fsdp {
namespace {

// Everything of a row of the batch as one row.
View RowsOf(const View& view, int64_t rows) {
  return view.Reshape(Shape{rows, view.NumElements() / rows});
}

// The vectors as an image, one pixel wide, whose channels they are.
View Image(const View& vectors, int64_t rows) {
  const int64_t width = vectors.shape[1];
  return vectors.Reshape(Shape{rows, vectors.shape[0] / rows, 1, width});
}

}  // namespace

Var JoinVectors(Tape& tape, const Var& a, const Var& b, int64_t rows, int64_t width) {
  const int64_t elements = a.shape.NumElements() + b.shape.NumElements();
  Var y = tape.NewVar(Shape{elements / width, width}, a.dtype);
  JoinColumns(tape.stream(), RowsOf(a.view(), rows), RowsOf(b.view(), rows),
              RowsOf(y.view(), rows));
  tape.Push([&tape, rows, a_shape = a.shape, b_shape = b.shape, dtype = a.dtype, a_grad = a.grad,
             b_grad = b.grad, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr da = tape.New(a_shape, dtype), db = tape.New(b_shape, dtype);
    SplitColumns(tape.stream(), RowsOf(dy->view(), rows), RowsOf(da->view(), rows),
                 RowsOf(db->view(), rows));
    if (a_grad) tape.Add(a_grad, std::move(da));
    if (b_grad) tape.Add(b_grad, std::move(db));
  });
  return y;
}

Var SwapVectors(Tape& tape, const Var& x, int64_t rows) {
  Var y = tape.NewVar(Shape{rows * x.shape[1], x.shape[0] / rows}, x.dtype);
  const auto forward = [&tape, rows, x = x.value](const View& out) {
    SwapVectors(tape.stream(), x->Get(), rows, out);
  };
  forward(y.view());
  tape.Cheap({y.value}, [forward](const std::vector<View>& out) { forward(out[0]); });
  tape.Push([&tape, rows, shape = x.shape, y_shape = y.shape, dtype = x.dtype, x_grad = x.grad,
             grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = tape.New(shape, dtype);
    SwapVectors(tape.stream(), dy->view().Reshape(y_shape), rows, dx->view());
    tape.Add(x_grad, std::move(dx));
  });
  return y;
}

Var PairDots(Tape& tape, const Var& x, int64_t rows) {
  const int64_t n = x.shape[0] / rows;
  const float scale = 1 / std::sqrt(static_cast<float>(x.shape[1]));
  Var y = tape.NewVar(Shape{rows, n * (n - 1) / 2}, x.dtype);
  PairDotsForward(tape.stream(), x.view(), scale, y.view());
  tape.Push([&tape, scale, x, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = tape.New(x.shape, x.dtype);
    PairDotsBackward(tape.stream(), x.view(), scale, dy->view(), dx->view());
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

Var Multiply(Tape& tape, const Var& a, const Var& b) {
  Var y = tape.NewVar(a.shape, a.dtype);
  MultiplyForward(tape.stream(), a.view(), b.view(), y.view());
  tape.Push([&tape, a, b, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr da = tape.New(a.shape, a.dtype), db = tape.New(b.shape, b.dtype);
    MultiplyBackward(tape.stream(), a.view(), b.view(), dy->view(), da->view(), db->view());
    tape.Add(a.grad, std::move(da));
    tape.Add(b.grad, std::move(db));
  });
  return y;
}

Var ConvolveVectors(Tape& tape, const Var& x, const Parameter& weight, int64_t rows) {
  const ConvolutionWindow window{.padding_height = weight.shape()[2] / 2};
  const ConstView w = weight.value();
  const ConvolutionShape shape =
      ShapeOfConvolution("convolution_forward", Image(x.view(), rows).shape, w.shape, window);
  Var y = tape.NewVar(Shape{x.shape[0], w.shape[0]}, x.dtype);
  {
    const Workspace workspace(
        tape, ConvolutionForwardWorkspaceBytes(shape, x.dtype, w.dtype, KernelsOf(tape),
                                               tape.convolution()));
    ConvolutionForward(tape.stream(), Image(x.view(), rows), w, window, Image(y.view(), rows),
                       workspace.view(), tape.convolution());
  }
  tape.Push([&tape, &weight, rows, window, shape, x, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = tape.New(x.shape, x.dtype);
    const ConstView w = weight.value();
    const std::optional<View> dw = GradOf(weight);
    const Workspace workspace(tape, ConvolutionBackwardWorkspaceBytes(
                                        shape, x.dtype, w.dtype, /*dx=*/true, dw.has_value(),
                                        KernelsOf(tape), tape.convolution()));
    ConvolutionBackward(tape.stream(), Image(x.view(), rows), w, window, Image(dy->view(), rows),
                        Image(dx->view(), rows), dw, workspace.view(), tape.convolution());
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

}  // namespace fsdp
