#include "trainer/nn/image_layers.h"

#include <optional>
#include <utility>
#include <vector>

#include "trainer/nn/layer_tools.h"
#include "trainer/ops/batch_norm.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/convolution.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/image_channels.h"
#include "trainer/ops/image_tokens.h"
#include "trainer/ops/running_statistics.h"

namespace fsdp {
namespace {

// Statistics of a training step's batch. A recompute takes those of forward.
TensorPtr StatisticsOfBatch(Tape& tape, const Var& x, const BatchNormed& norm,
                            const View& weights) {
  const int64_t channels = x.shape[x.shape.rank() - 1], width = 1 + 2 * channels;
  return tape.Once([&] {
    const auto [ranks, own] = tape.hooks().batch_ranks();
    const TensorPtr parts = tape.New(Shape{ranks, width}, DType::kFloat32);
    TensorPtr statistics = tape.New(Shape{width}, DType::kFloat32);
    if (ranks > 1) Fill(tape.stream(), 0, parts->view());
    {
      const Workspace workspace(tape, BatchNormWorkspaceBytes(x.shape));
      const View all = parts->view().Reshape(Shape{ranks * width});
      BatchMoments(tape.stream(), x.view(), weights, all.Slice(own * width, width),
                   workspace.view());
    }
    // A sum of each rank's part and zeros: every rank then joins the same parts in one order.
    if (ranks > 1) tape.hooks().SumOverRanks(parts->view());
    std::optional<RunningMoments> running;
    if (tape.writes_buffers()) {
      running = {norm.mean->Write(tape), norm.variance->Write(tape), norm.momentum};
      CountBatch(tape.stream(), norm.count->Write(tape));
    }
    JoinMoments(tape.stream(), parts->view(), norm.eps, statistics->view(), running);
    return statistics;
  });
}

}  // namespace

Var Pixels(Tape& tape, const View& images) {
  Var x = tape.NewVar(images.shape, tape.activations());
  x.grad = nullptr;
  if (x.dtype == images.dtype) {
    Copy(tape.stream(), images, x.view());
  } else {
    Cast(tape.stream(), images, x.view());
  }
  return x;
}

Var Convolution(Tape& tape, const Var& x, const Parameter& weight,
                const ConvolutionWindow& window) {
  const ConvolutionShape s = ShapeOfConvolution("convolution", x.shape, weight.shape(), window);
  Var y = tape.NewVar(Shape{s.samples, s.out_height(), s.out_width(), s.out}, x.dtype);
  {
    const Workspace workspace(
        tape, ConvolutionForwardWorkspaceBytes(s, x.dtype, weight.value().dtype, KernelsOf(tape),
                                               tape.convolution()));
    ConvolutionForward(tape.stream(), x.view(), weight.value(), window, y.view(), workspace.view(),
                       tape.convolution());
  }
  tape.Push([&tape, &weight, window, s, x, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    const std::optional<View> dw = GradOf(weight);
    TensorPtr dx = x.grad ? tape.New(x.shape, x.dtype) : nullptr;
    if (!dx && !dw) return;
    {
      const Workspace workspace(tape, ConvolutionBackwardWorkspaceBytes(
                                          s, x.dtype, weight.value().dtype, dx != nullptr,
                                          dw.has_value(), KernelsOf(tape), tape.convolution()));
      ConvolutionBackward(tape.stream(), x.view(), weight.value(), window, dy->view(),
                          dx ? std::optional(dx->view()) : std::nullopt, dw, workspace.view(),
                          tape.convolution());
    }
    if (dx) tape.Add(x.grad, std::move(dx));
  });
  return y;
}

Var BatchNorm(Tape& tape, const Var& x, const BatchNormed& norm, const View& weights, bool relu,
              bool returned) {
  const int64_t channels = x.shape[x.shape.rank() - 1];
  TensorPtr statistics;
  if (tape.training()) {
    statistics = StatisticsOfBatch(tape, x, norm, weights);
  } else {
    statistics = tape.New(Shape{1 + 2 * channels}, DType::kFloat32);
    UseRunningMoments(tape.stream(), norm.mean->Read(tape), norm.variance->Read(tape), norm.eps,
                      statistics->view());
  }
  Var y = tape.NewVar(x.shape, x.dtype);
  const auto make = [&tape, x = x.value, norm, relu, statistics](const View& out) {
    BatchNormForward(tape.stream(), x->Get(), statistics->view(), norm.weight->value(),
                     norm.bias->value(), relu, out);
  };
  make(y.view());
  if (!returned) tape.Cheap({y.value}, [make](const std::vector<View>& out) { make(out[0]); });
  tape.Push([&tape, x, norm, weights, relu, statistics, channels, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    const ConstView w = norm.weight->value(), b = norm.bias->value();
    const TensorPtr sums = tape.New(Shape{2, channels}, DType::kFloat32);
    {
      const Workspace workspace(tape, BatchNormWorkspaceBytes(x.shape));
      BatchNormSums(tape.stream(), x.view(), statistics->view(), w, b, relu, dy->view(),
                    GradOf(*norm.weight), GradOf(*norm.bias), sums->view(), workspace.view());
    }
    if (tape.hooks().batch_ranks().count > 1) tape.hooks().SumOverRanks(sums->view());
    TensorPtr dx = Tape::Owned(dy) ? dy : tape.New(x.shape, x.dtype);
    BatchNormBackward(tape.stream(), x.view(), weights, statistics->view(), w, b, relu,
                      sums->view(), dy->view(), dx->view());
    dy = nullptr;
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

Var MeanPixels(Tape& tape, const Var& x) {
  Var y = tape.NewVar(Shape{x.shape[0], x.shape[x.shape.rank() - 1]}, x.dtype);
  MeanPixelsForward(tape.stream(), x.view(), y.view());
  tape.Push([&tape, shape = x.shape, dtype = x.dtype, x_grad = x.grad, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    // Adds to the gradient that is there, where nobody else holds it.
    TensorPtr dx = std::exchange(*x_grad, nullptr);
    const bool adds = dx != nullptr && Tape::Owned(dx);
    TensorPtr own = adds ? std::move(dx) : tape.New(shape, dtype);
    MeanPixelsBackward(tape.stream(), dy->view(), own->view(), adds);
    if (dx != nullptr) *x_grad = std::move(dx);
    tape.Add(x_grad, std::move(own));
  });
  return y;
}

Var ScaleChannels(Tape& tape, const Var& x, const Var& f) {
  Var y = tape.NewVar(x.shape, x.dtype);
  const auto make = [&tape, x = x.value, f = f.value](const View& out) {
    ScaleChannelsForward(tape.stream(), x->Get(), f->Get(), out);
  };
  make(y.view());
  tape.Cheap({y.value}, [make](const std::vector<View>& out) { make(out[0]); });
  tape.Push([&tape, x, f, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = Tape::Owned(dy) ? dy : tape.New(x.shape, x.dtype);
    TensorPtr df = tape.New(f.shape, f.dtype);
    ScaleChannelsBackward(tape.stream(), x.view(), f.view(), dy->view(), dx->view(), df->view());
    dy = nullptr;
    tape.Add(x.grad, std::move(dx));
    tape.Add(f.grad, std::move(df));
  });
  return y;
}

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
