#include "trainer/nn/layers.h"

#include <optional>
#include <utility>
#include <vector>

#include "trainer/nn/layer_tools.h"
#include "trainer/nn/matrix_of.h"
#include "trainer/ops/activations.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/dropout.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/embedding.h"
#include "trainer/ops/head_loss.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/lora.h"
#include "trainer/ops/norm.h"

namespace fsdp {
namespace {

View Flat(const View& view) { return view.Reshape(Shape{view.NumElements()}); }

// x as the rows that a weight takes in, or puts out. One such row may be several rows of the
// tensor.
View Inputs(const View& x, const Parameter& weight, WeightLayout layout) {
  const Shape& w = weight.shape();
  const int64_t in = layout == WeightLayout::kInOut ? w[0] : w.NumElements() / w[0];
  return x.Reshape(Shape{x.NumElements() / in, in});
}
View Outputs(const View& y, const Parameter& weight, WeightLayout layout) {
  const int64_t out = weight.shape()[layout == WeightLayout::kInOut ? 1 : 0];
  return y.Reshape(Shape{y.NumElements() / out, out});
}

std::optional<View> MatrixGradOf(const Parameter& weight) {
  const std::optional<View> grad = GradOf(weight);
  return grad ? std::optional(AsMatrix(*grad)) : std::nullopt;
}

// A gradient of x that may be written to: `d` itself, which is like it, where nobody else holds it.
TensorPtr OwnOrNew(Tape& tape, const TensorPtr& d, const Var& x) {
  return Tape::Owned(d) ? d : tape.New(x.shape, x.dtype);
}

}  // namespace

Var Embed(Tape& tape, const Parameter& token_table, const Parameter& position_table,
          const TokenBatch& batch) {
  const View tokens = Flat(batch.tokens), positions = Flat(batch.positions);
  const ConstView table = token_table.value();
  Var y = tape.NewVar(Shape{tokens.NumElements(), token_table.shape()[1]}, tape.activations());
  EmbeddingForward(tape.stream(), tokens, positions, table, position_table.value(), y.view());
  tape.Push([&tape, &token_table, &position_table, tokens, order = batch.order, positions,
             grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    EmbeddingBackward(tape.stream(), tokens, order, positions, dy->view(), GradOf(token_table),
                      GradOf(position_table));
  });
  return y;
}

Var Embed(Tape& tape, const Parameter& token_table, const TokenBatch& batch) {
  const View tokens = Flat(batch.tokens);
  const ConstView table = token_table.value();
  Var y = tape.NewVar(Shape{tokens.NumElements(), token_table.shape()[1]}, tape.activations());
  EmbeddingForward(tape.stream(), tokens, std::nullopt, table, std::nullopt, y.view());
  tape.Push([&tape, &token_table, tokens, order = batch.order, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    EmbeddingBackward(tape.stream(), tokens, order, std::nullopt, dy->view(), GradOf(token_table),
                      std::nullopt);
  });
  return y;
}

Var LayerNorm(Tape& tape, const Var& x, const Parameter& weight, const Parameter& bias, float eps) {
  const int64_t rows = x.shape[0], cols = x.shape[1];
  Var y = tape.NewVar(x.shape, x.dtype);
  const TensorPtr mean = tape.New(Shape{rows}, DType::kFloat32);
  const TensorPtr rstd = tape.New(Shape{rows}, DType::kFloat32);
  const auto forward = [&tape, &weight, &bias, eps, x = x.value, mean, rstd](View out) {
    LayerNormForward(tape.stream(), x->Get(), weight.value(), bias.value(), eps, out, mean->view(),
                     rstd->view());
  };
  forward(y.view());
  if (!tape.recording()) return y;
  tape.Cheap({y.value}, [forward](const std::vector<View>& out) { forward(out[0]); });
  tape.Push([&tape, &weight, &bias, rows, cols, x, mean, rstd, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    const Workspace workspace(
        tape, LayerNormBackwardWorkspaceBytes(rows, cols, x.dtype, KernelsOf(tape)));
    const auto backward = [&](NormDx mode, const View& dx) {
      LayerNormBackward(tape.stream(), x.view(), weight.value(), mean->view(), rstd->view(),
                        dy->view(), mode, dx, GradOf(weight), GradOf(bias), workspace.view());
    };
    if (*x.grad && Tape::Owned(*x.grad)) {
      backward(NormDx::kAdd, (*x.grad)->view());
    } else {
      TensorPtr dx = OwnOrNew(tape, dy, x);
      backward(NormDx::kOverwrite, dx->view());
      dy = nullptr;
      tape.Add(x.grad, std::move(dx));
    }
  });
  return y;
}

Var RmsNorm(Tape& tape, const Var& x, const Parameter& weight, float eps) {
  const int64_t rows = x.shape[0], cols = x.shape[1];
  Var y = tape.NewVar(x.shape, x.dtype);
  const TensorPtr r = tape.New(Shape{rows}, DType::kFloat32);
  const auto forward = [&tape, &weight, eps, x = x.value, r](View out) {
    RmsNormForward(tape.stream(), x->Get(), weight.value(), eps, out, r->view());
  };
  forward(y.view());
  if (!tape.recording()) return y;
  tape.Cheap({y.value}, [forward](const std::vector<View>& out) { forward(out[0]); });
  tape.Push([&tape, &weight, rows, cols, x, r, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    const Workspace workspace(tape,
                              RmsNormBackwardWorkspaceBytes(rows, cols, x.dtype, KernelsOf(tape)));
    const auto backward = [&](NormDx mode, const View& dx) {
      RmsNormBackward(tape.stream(), x.view(), weight.value(), r->view(), dy->view(), mode, dx,
                      GradOf(weight), workspace.view());
    };
    if (*x.grad && Tape::Owned(*x.grad)) {
      backward(NormDx::kAdd, (*x.grad)->view());
    } else {
      TensorPtr dx = OwnOrNew(tape, dy, x);
      backward(NormDx::kOverwrite, dx->view());
      dy = nullptr;
      tape.Add(x.grad, std::move(dx));
    }
  });
  return y;
}

namespace {

// Whether an adapter drops a part of x here.
bool Drops(const Tape& tape, const Adapter& adapter) {
  return adapter.dropout > 0 && tape.training();
}

void DropForAdapter(Tape& tape, const Adapter& adapter, const View& from, const View& to) {
  const View& keys = tape.adapter_keys();
  const Shape samples{keys.shape[0], from.shape.NumElements() / keys.shape[0]};
  Dropout(tape.stream(), from.Reshape(samples), keys, adapter.site, adapter.dropout,
          to.Reshape(samples));
}

// Adds what the adapters of `weight` make of x to y; returns u of each, for the way back.
std::vector<TensorPtr> AdaptersForward(Tape& tape, const View& x, const Parameter& weight,
                                       const View& y) {
  std::vector<TensorPtr> inner;
  for (const Adapter& adapter : weight.adapters()) {
    inner.push_back(tape.New(Shape{x.shape[0], adapter.a->shape()[0]}, x.dtype));
    TensorPtr dropped;
    if (Drops(tape, adapter)) {
      dropped = tape.New(x.shape, x.dtype);
      DropForAdapter(tape, adapter, x, dropped->view());
    }
    LoraForward(tape.stream(), dropped ? dropped->view() : x, adapter.a->value(),
                adapter.b->value(), static_cast<float>(adapter.scale), adapter.column,
                inner.back()->view(), y);
  }
  return inner;
}

// From dy, the gradient of y = x W + b, computes those of x, W, b and the adapters. Where x =
// gelu(u), and u was made together with x, it computes that of u instead of x.
void AddLinearGradients(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
                        const Parameter* bias, const std::vector<TensorPtr>& inner,
                        const View& of_y) {
  const auto rows = [&](const View& view) { return Inputs(view, weight, layout); };
  const View dy = Outputs(of_y, weight, layout);
  std::optional<View> db;
  if (bias) db = GradOf(*bias);
  if (!x.grad && inner.empty()) {
    if (!MatrixGradOf(weight) && !db) return;
    LinearBackward(tape.stream(), rows(x.view()), MatrixOf(tape, weight), layout, dy, std::nullopt,
                   MatrixGradOf(weight), db);
    return;
  }
  TensorPtr dx = tape.New(x.shape, x.dtype);
  if (x.gelu_of && inner.empty()) {
    const Var& u = *x.gelu_of;
    LinearGeluBackward(tape.stream(), rows(u.view()), rows(x.view()), MatrixOf(tape, weight),
                       layout, dy, rows(dx->view()), MatrixGradOf(weight), db);
    tape.Add(u.grad, std::move(dx));
    return;
  }
  LinearBackward(tape.stream(), rows(x.view()), MatrixOf(tape, weight), layout, dy,
                 rows(dx->view()), MatrixGradOf(weight), db);
  for (size_t i = 0; i < inner.size(); ++i) {
    const Adapter& adapter = weight.adapters()[i];
    const View u = inner[i]->view();
    const Workspace workspace(
        tape, LoraBackwardWorkspaceBytes(u.shape[0], u.shape[1], u.dtype, KernelsOf(tape)));
    const auto backward = [&](const View& read, const View& grad) {
      LoraBackward(tape.stream(), rows(read), u, adapter.a->value(), adapter.b->value(),
                   static_cast<float>(adapter.scale), dy, adapter.column, rows(grad),
                   GradOf(*adapter.a), GradOf(*adapter.b), workspace.view());
    };
    if (!Drops(tape, adapter)) {
      backward(x.view(), dx->view());
      continue;
    }
    // The part that forward kept, drawn again, and the gradient of it alone.
    const TensorPtr kept = tape.New(x.shape, x.dtype), grad = tape.New(x.shape, x.dtype);
    DropForAdapter(tape, adapter, x.view(), kept->view());
    Fill(tape.stream(), 0, grad->view());
    backward(kept->view(), grad->view());
    DropForAdapter(tape, adapter, grad->view(), grad->view());
    Accumulate(tape.stream(), grad->view(), dx->view());
  }
  if (x.grad) tape.Add(x.grad, std::move(dx));
}

// From the gradient of gelu(x) to that of x.
void AddGeluGradient(Tape& tape, const Var& x, const std::shared_ptr<TensorPtr>& grad) {
  TensorPtr dy = Tape::Take(grad);
  TensorPtr dx = OwnOrNew(tape, dy, x);
  GeluBackward(tape.stream(), x.view(), dy->view(), dx->view());
  dy = nullptr;
  tape.Add(x.grad, std::move(dx));
}

}  // namespace

Var Linear(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
           const Parameter* bias) {
  const int64_t out = weight.shape()[layout == WeightLayout::kInOut ? 1 : 0];
  const View in = Inputs(x.view(), weight, layout);
  Var y = tape.NewVar(Shape{in.shape[0], out}, x.dtype);
  std::optional<ConstView> b;
  if (bias) b = bias->value();
  LinearForward(tape.stream(), in, MatrixOf(tape, weight), layout, b, y.view());
  const std::vector<TensorPtr> inner = AdaptersForward(tape, in, weight, y.view());
  tape.Push([&tape, &weight, bias, layout, x, inner, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    AddLinearGradients(tape, x, weight, layout, bias, inner, dy->view());
  });
  return y;
}

Var LinearResidual(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
                   const Parameter* bias, const Var& residual) {
  if (!weight.adapters().empty()) {  // Each would round the whole sum again.
    return Residual(tape, residual, Linear(tape, x, weight, layout, bias));
  }
  Var y = tape.NewVar(residual.shape, residual.dtype);
  std::optional<ConstView> b;
  if (bias) b = bias->value();
  LinearResidualForward(tape.stream(), Inputs(x.view(), weight, layout), MatrixOf(tape, weight),
                        layout, b, Outputs(residual.view(), weight, layout),
                        Outputs(y.view(), weight, layout));
  tape.Push([&tape, &weight, bias, layout, x, residual = residual.grad, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    AddLinearGradients(tape, x, weight, layout, bias, {}, dy->view());
    tape.Add(residual, std::move(dy));
  });
  return y;
}

Var LinearGelu(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
               const Parameter* bias) {
  const int64_t out = weight.shape()[layout == WeightLayout::kInOut ? 1 : 0];
  const Var u = tape.NewVar(Shape{x.shape[0], out}, x.dtype);
  Var y = tape.NewVar(u.shape, u.dtype);
  std::optional<ConstView> b;
  if (bias) b = bias->value();
  std::vector<TensorPtr> inner;
  if (weight.adapters().empty()) {
    LinearGeluForward(tape.stream(), x.view(), MatrixOf(tape, weight), layout, b, u.view(),
                      y.view());
  } else {
    LinearForward(tape.stream(), x.view(), MatrixOf(tape, weight), layout, b, u.view());
    inner = AdaptersForward(tape, x.view(), weight, u.view());
    GeluForward(tape.stream(), u.view(), y.view());
  }
  if (!tape.recording()) return y;
  tape.Cheap({y.value}, [&tape, u = u.value](const std::vector<View>& out) {
    GeluForward(tape.stream(), u->Get(), out[0]);
  });
  y.gelu_of = std::make_shared<const Var>(u);
  tape.Push([&tape, &weight, bias, layout, x, inner, u, grad = y.grad] {
    if (*grad) AddGeluGradient(tape, u, grad);  // From those who did not see to u themselves.
    const TensorPtr du = Tape::Take(u.grad);
    AddLinearGradients(tape, x, weight, layout, bias, inner, du->view());
  });
  return y;
}

Var Dropout(Tape& tape, const Var& x, const View& sample_keys, uint32_t site, double rate) {
  const int64_t rows = sample_keys.shape[0];
  const Shape samples{rows, x.shape.NumElements() / rows};
  const View keys = sample_keys;
  const auto drop = [&tape, samples, keys, site, rate](const View& from, const View& to) {
    Dropout(tape.stream(), from.Reshape(samples), keys, site, rate, to.Reshape(samples));
  };
  drop(x.view(), x.view());
  Var y = x;
  if (tape.recording()) y.grad = std::make_shared<TensorPtr>();
  tape.Push([&tape, drop, x_grad = x.grad, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = Tape::Owned(dy) ? dy : tape.New(dy->view().shape, dy->view().dtype);
    drop(dy->view(), dx->view());
    dy = nullptr;
    tape.Add(x_grad, std::move(dx));
  });
  return y;
}

Var Scaled(Tape& tape, const Var& x, float factor) {
  Var y = tape.NewVar(x.shape, x.dtype);
  Copy(tape.stream(), x.view(), y.view());
  if (factor != 1) Scale(tape.stream(), factor, y.view());
  tape.Push([&tape, factor, x_grad = x.grad, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    if (factor != 1) {
      if (!Tape::Owned(dy)) {
        const TensorPtr of_all = std::exchange(dy, tape.New(dy->view().shape, dy->view().dtype));
        Copy(tape.stream(), of_all->view(), dy->view());
      }
      Scale(tape.stream(), factor, dy->view());
    }
    tape.Add(x_grad, std::move(dy));
  });
  return y;
}

Var Residual(Tape& tape, const Var& x, const Var& y) {
  Var sum = tape.NewVar(x.shape, x.dtype);
  Add(tape.stream(), x.view(), y.view(), sum.view());
  tape.Push([&tape, x = x.grad, y = y.grad, grad = sum.grad] {
    TensorPtr d = Tape::Take(grad);
    tape.Add(x, d);
    tape.Add(y, std::move(d));
  });
  return sum;
}

Var FromBatch(Tape& tape, const View& input) {
  const int64_t rows = input.shape[0], all = input.NumElements();
  Var x = tape.NewVar(Shape{rows, rows > 0 ? all / rows : 0}, tape.activations());
  x.grad = nullptr;
  const View from = Flat(input), to = Flat(x.view());
  if (to.dtype == from.dtype) {
    Copy(tape.stream(), from, to);
  } else {
    Cast(tape.stream(), from, to);
  }
  return x;
}

void HeadLoss(Tape& tape, const Var& x, const Parameter& table, const View& of_targets,
              const View& of_weights, float scale, View loss) {
  const View targets = Flat(of_targets), weights = Flat(of_weights);
  const auto scratch_bytes = [&tape, &table, x] {
    return HeadLossWorkspaceBytes(x.shape[0], table.shape()[0], x.dtype, table.value().dtype,
                                  KernelsOf(tape));
  };
  if (!tape.recording()) {
    const Workspace workspace(tape, scratch_bytes());
    HeadLossForward(tape.stream(), x.view(), table.value(), targets, weights, scale, loss,
                    workspace.view());
    return;
  }
  tape.Push([&tape, &table, x, targets, weights, scale, loss, scratch_bytes] {
    const std::optional<View> dw = GradOf(table);
    const int64_t sums =
        dw ? HeadLossDwWorkspaceBytes(x.shape[0], x.shape[1], table.shape()[0], x.dtype,
                                      table.value().dtype, dw->dtype, KernelsOf(tape))
           : 0;
    const Workspace workspace(tape, scratch_bytes() + sums);
    TensorPtr dx = tape.New(x.shape, x.dtype);
    HeadLossForwardBackward(tape.stream(), x.view(), table.value(), targets, weights, scale,
                            tape.loss_scale(), loss, dx->view(), dw, workspace.view());
    tape.Add(x.grad, std::move(dx));
  });
}

void HeadLogits(Tape& tape, const Var& x, const Parameter& table, const TokenBatch& batch,
                int64_t column, View logits) {
  const int64_t rows = batch.tokens.shape[0], seq = batch.tokens.shape[1];
  const int64_t hidden = x.shape[1], vocab = table.shape()[0];
  for (int64_t r = 0; r < rows; ++r) {
    const View last = x.view().Slice((r * seq + column) * hidden, hidden);
    LinearForward(tape.stream(), last.Reshape(Shape{1, hidden}), AsMatrix(table.value()),
                  WeightLayout::kOutIn, std::nullopt,
                  logits.Slice(r * vocab, vocab).Reshape(Shape{1, vocab}));
  }
}

}  // namespace fsdp
