// Tests: tests/trainer/nn/activation_layers_test.cc
#include <memory>
#include <utility>
#include <vector>

#include "trainer/autograd/tape.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/activations.h"
#include "trainer/ops/swiglu.h"

namespace fsdp {
namespace {

// From the gradient of f(x) to that of x, by what backward reads.
void PushBackward(Tape& tape, Activation f, const SavedPtr& saved,
                  const std::shared_ptr<TensorPtr>& x_grad,
                  const std::shared_ptr<TensorPtr>& grad) {
  tape.Push([&tape, f, saved, x_grad, grad] {
    TensorPtr dy = Tape::Take(grad);
    const View& read = saved->Get();
    TensorPtr dx = Tape::Owned(dy) ? dy : tape.New(read.shape, read.dtype);
    ActivationBackward(tape.stream(), f, read, dy->view(), dx->view());
    dy = nullptr;
    tape.Add(x_grad, std::move(dx));
  });
}

Var FromOutput(Tape& tape, Activation f, const Var& x) {
  Var y = tape.NewVar(x.shape, x.dtype);
  ActivationForward(tape.stream(), f, x.view(), y.view());
  PushBackward(tape, f, y.value, x.grad, y.grad);
  return y;
}

// y = forward(x), which is cheap to make again.
template <typename Forward>
Var CheapVar(Tape& tape, const Var& x, const Shape& shape, const Forward& forward) {
  Var y = tape.NewVar(shape, x.dtype);
  const auto make = [&tape, forward, x = x.value](const View& out) {
    forward(tape.stream(), x->Get(), out);
  };
  make(y.view());
  tape.Cheap({y.value}, [make](const std::vector<View>& out) { make(out[0]); });
  return y;
}

// The same of f, whose backward reads x.
Var FromInput(Tape& tape, Activation f, const Var& x) {
  Var y = CheapVar(tape, x, x.shape, [f](Stream& stream, const View& from, const View& to) {
    ActivationForward(stream, f, from, to);
  });
  PushBackward(tape, f, x.value, x.grad, y.grad);
  return y;
}

// The same of a gate and a value in one tensor.
template <typename Forward, typename Backward>
Var Gated(Tape& tape, const Var& x, const Forward& forward, const Backward& backward) {
  Var y = CheapVar(tape, x, Shape{x.shape[0], x.shape[1] / 2}, forward);
  tape.Push([&tape, x, backward, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = tape.New(x.shape, x.dtype);
    backward(tape.stream(), x.view(), dy->view(), dx->view());
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

}  // namespace

Var Relu(Tape& tape, const Var& x) { return FromOutput(tape, Activation::kRelu, x); }
Var Sigmoid(Tape& tape, const Var& x) { return FromOutput(tape, Activation::kSigmoid, x); }
Var Gelu(Tape& tape, const Var& x) { return FromInput(tape, Activation::kGelu, x); }
Var GeluExact(Tape& tape, const Var& x) { return FromInput(tape, Activation::kGeluExact, x); }

Var Swiglu(Tape& tape, const Var& x) { return Gated(tape, x, SwigluForward, SwigluBackward); }
Var GatedGelu(Tape& tape, const Var& x) {
  return Gated(tape, x, GatedGeluForward, GatedGeluBackward);
}

}  // namespace fsdp
