#include "trainer/nn/layers.h"

#include <optional>
#include <vector>

#include "trainer/core/check.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/attention_cached.h"
#include "trainer/ops/dropout.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/embedding.h"
#include "trainer/ops/gelu.h"
#include "trainer/ops/head_loss.h"
#include "trainer/ops/layer_norm.h"
#include "trainer/ops/lora.h"
#include "trainer/ops/rms_norm.h"
#include "trainer/ops/rope.h"
#include "trainer/ops/swiglu.h"

namespace fsdp {
namespace {

View Flat(const View& view) { return view.Reshape(Shape{view.NumElements()}); }

// What products take of a weight. They multiply by no scale.
ConstView ValueOf(const Parameter& weight) {
  const Weight form = weight.weight();
  FSDP_CHECK(form.scale.data == nullptr) << weight.name() << " has a scale";
  return form.value;
}

// Where the gradient goes: nowhere if the parameter is frozen.
std::optional<View> GradOf(const Parameter& parameter) {
  return parameter.trainable() ? std::optional(parameter.grad()) : std::nullopt;
}

// A gradient of x that may be written to: `d` itself, which is like it, where nobody else holds it.
TensorPtr OwnOrNew(Tape& tape, const TensorPtr& d, const Var& x) {
  return Tape::Owned(d) ? d : tape.New(x.shape, x.dtype);
}

// Whose kernels the tape's operations are for, and so whose workspaces they need.
DeviceType KernelsOf(const Tape& tape) { return tape.stream().device().kernel_type(); }

// Memory for one operation, of as many bytes as it asks for: perhaps none.
class Workspace {
 public:
  Workspace(Tape& tape, int64_t bytes)
      : memory_(bytes > 0 ? tape.New(Shape{bytes}, DType::kUInt8) : nullptr) {}
  View view() const { return memory_ ? memory_->view() : View(nullptr, DType::kUInt8, Shape{0}); }

 private:
  TensorPtr memory_;
};

}  // namespace

Var Embed(Tape& tape, const Parameter& token_table, const Parameter& position_table,
          const Batch& batch) {
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

Var Embed(Tape& tape, const Parameter& token_table, const Batch& batch) {
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
    const auto backward = [&](LayerNormDx mode, const View& dx) {
      LayerNormBackward(tape.stream(), x.view(), weight.value(), mean->view(), rstd->view(),
                        dy->view(), mode, dx, GradOf(weight), GradOf(bias), workspace.view());
    };
    if (*x.grad && Tape::Owned(*x.grad)) {
      backward(LayerNormDx::kAdd, (*x.grad)->view());
    } else {
      TensorPtr dx = OwnOrNew(tape, dy, x);
      backward(LayerNormDx::kOverwrite, dx->view());
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
    const auto backward = [&](RmsNormDx mode, const View& dx) {
      RmsNormBackward(tape.stream(), x.view(), weight.value(), r->view(), dy->view(), mode, dx,
                      GradOf(weight), workspace.view());
    };
    if (*x.grad && Tape::Owned(*x.grad)) {
      backward(RmsNormDx::kAdd, (*x.grad)->view());
    } else {
      TensorPtr dx = OwnOrNew(tape, dy, x);
      backward(RmsNormDx::kOverwrite, dx->view());
      dy = nullptr;
      tape.Add(x.grad, std::move(dx));
    }
  });
  return y;
}

namespace {

// Adds what the adapters of `weight` make of x to y; returns u of each, for the way back.
std::vector<TensorPtr> AdaptersForward(Tape& tape, const Var& x, const Parameter& weight,
                                       const View& y) {
  std::vector<TensorPtr> inner;
  for (const Adapter& adapter : weight.adapters()) {
    inner.push_back(tape.New(Shape{x.shape[0], adapter.a->shape()[0]}, x.dtype));
    LoraForward(tape.stream(), x.view(), adapter.a->value(), adapter.b->value(), adapter.scale,
                adapter.column, inner.back()->view(), y);
  }
  return inner;
}

// From dy, the gradient of y = x W + b, to those of x, W, b and the adapters'. Where x = gelu(u) of
// a u that was made with it, to that of u.
void AddLinearGradients(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
                        const Parameter* bias, const std::vector<TensorPtr>& inner,
                        const View& dy) {
  std::optional<View> db;
  if (bias) db = GradOf(*bias);
  TensorPtr dx = tape.New(x.shape, x.dtype);
  if (x.gelu_of && inner.empty()) {
    const Var& u = *x.gelu_of;
    LinearGeluBackward(tape.stream(), u.view(), x.view(), ValueOf(weight), layout, dy, dx->view(),
                       GradOf(weight), db);
    tape.Add(u.grad, std::move(dx));
    return;
  }
  LinearBackward(tape.stream(), x.view(), ValueOf(weight), layout, dy, dx->view(), GradOf(weight),
                 db);
  for (size_t i = 0; i < inner.size(); ++i) {
    const Adapter& adapter = weight.adapters()[i];
    const View u = inner[i]->view();
    const Workspace workspace(
        tape, LoraBackwardWorkspaceBytes(u.shape[0], u.shape[1], u.dtype, KernelsOf(tape)));
    LoraBackward(tape.stream(), x.view(), u, adapter.a->value(), adapter.b->value(), adapter.scale,
                 dy, adapter.column, dx->view(), GradOf(*adapter.a), GradOf(*adapter.b),
                 workspace.view());
  }
  tape.Add(x.grad, std::move(dx));
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
  Var y = tape.NewVar(Shape{x.shape[0], out}, x.dtype);
  std::optional<ConstView> b;
  if (bias) b = bias->value();
  LinearForward(tape.stream(), x.view(), ValueOf(weight), layout, b, y.view());
  const std::vector<TensorPtr> inner = AdaptersForward(tape, x, weight, y.view());
  tape.Push([&tape, &weight, bias, layout, x, inner, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    AddLinearGradients(tape, x, weight, layout, bias, inner, dy->view());
  });
  return y;
}

Var Gelu(Tape& tape, const Var& x) {
  Var y = tape.NewVar(x.shape, x.dtype);
  const auto forward = [&tape, x = x.value](View out) {
    GeluForward(tape.stream(), x->Get(), out);
  };
  forward(y.view());
  tape.Cheap({y.value}, [forward](const std::vector<View>& out) { forward(out[0]); });
  tape.Push([&tape, x, grad = y.grad] { AddGeluGradient(tape, x, grad); });
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
    LinearGeluForward(tape.stream(), x.view(), ValueOf(weight), layout, b, u.view(), y.view());
  } else {
    LinearForward(tape.stream(), x.view(), ValueOf(weight), layout, b, u.view());
    inner = AdaptersForward(tape, x, weight, u.view());
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

Var Swiglu(Tape& tape, const Var& x) {
  Var y = tape.NewVar(Shape{x.shape[0], x.shape[1] / 2}, x.dtype);
  const auto forward = [&tape, x = x.value](View out) {
    SwigluForward(tape.stream(), x->Get(), out);
  };
  forward(y.view());
  tape.Cheap({y.value}, [forward](const std::vector<View>& out) { forward(out[0]); });
  tape.Push([&tape, x, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = tape.New(x.shape, x.dtype);
    SwigluBackward(tape.stream(), x.view(), dy->view(), dx->view());
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

namespace {

// Where heads lie in qkv [batch, seq, heads + 2 kv_heads, head_dim], and the shapes beside it.
struct PackedHeads {
  int64_t heads, kv_heads;
  Shape qkv, qk, out, lse;
  DType dtype;  // Of all but lse.
  View positions;
  AttentionDropout dropout;

  PackedHeads(const Var& x, const Batch& batch, const AttentionHeads& h,
              const ProbabilityDropout& drop)
      : heads(h.heads), kv_heads(h.kv_heads), dtype(x.dtype), positions(batch.positions) {
    if (drop.rate > 0) {
      dropout = {drop.rate, static_cast<uint32_t>(drop.layer), batch.sample_keys};
    }
    const int64_t rows = batch.tokens.shape[0], seq = batch.tokens.shape[1];
    const int64_t all = heads + 2 * kv_heads, head_dim = x.shape[1] / all;
    qkv = Shape{rows, seq, all, head_dim};
    qk = Shape{rows, seq, heads + kv_heads, head_dim};
    out = Shape{rows, seq, heads, head_dim};
    lse = Shape{rows, heads, seq};
  }
  AttentionDims Dims() const { return {out[0], out[1], heads, kv_heads, out[3]}; }
  // `tensor` has the heads of q, k and perhaps v.
  Heads Q(const View& tensor) const { return {tensor, 0, heads}; }
  Heads K(const View& tensor) const { return {tensor, heads, kv_heads}; }
  Heads V(const View& tensor) const { return {tensor, heads + kv_heads, kv_heads}; }
  Heads QK(const View& tensor) const { return {tensor, 0, heads + kv_heads}; }
  AttentionInputs Inputs(const View& qk, const View& v) const {
    return {Q(qk), K(qk), V(v), positions, dropout};
  }
};

// Attention of what `inputs` gives when it is run, whose gradients `backward` takes over: called
// with attention's own backward, to be run on gradients' places.
using AttentionBackwardOf = std::function<void(const AttentionGradients&)>;
Var Attend(Tape& tape, const PackedHeads& p, const std::function<AttentionInputs()>& inputs,
           const std::function<void(const AttentionBackwardOf&)>& backward) {
  Var y = tape.NewVar(Shape{p.out[0] * p.out[1], p.out[2] * p.out[3]}, p.dtype);
  if (KvCache* const cache = tape.cache()) {
    FSDP_CHECK(!tape.recording()) << "a cache has no backward";
    const KvCache::Layer& layer = cache->Next();
    const AttentionCachedDims dims{p.out[0],   p.out[1], p.heads,
                                   p.kv_heads, p.out[3], cache->capacity()};
    const Workspace workspace(tape, AttentionCachedWorkspaceBytes(dims, p.dtype, KernelsOf(tape)));
    AttentionCached(tape.stream(), inputs(), layer.k, layer.v, y.view().Reshape(p.out),
                    workspace.view());
    return y;
  }
  const auto lse = std::make_shared<Saved>(tape.New(p.lse, DType::kFloat32));
  const auto forward = [&tape, p, inputs](const View& out, const View& lse) {
    const Workspace workspace(tape,
                              AttentionForwardWorkspaceBytes(p.Dims(), p.dtype, KernelsOf(tape)));
    AttentionForward(tape.stream(), inputs(), out.Reshape(p.out), lse, workspace.view());
  };
  forward(y.view(), lse->Get());
  tape.Cheap({y.value, lse}, [forward](const std::vector<View>& out) { forward(out[0], out[1]); });
  tape.Push([&tape, p, inputs, backward, out = y.value, lse, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    backward([&](const AttentionGradients& gradients) {
      const View y = out->Get();  // Before lse: it may make both again.
      const Workspace workspace(
          tape, AttentionBackwardWorkspaceBytes(p.Dims(), p.dtype, KernelsOf(tape)));
      AttentionBackward(tape.stream(), inputs(), y.Reshape(p.out), lse->Get(),
                        dy->view().Reshape(p.out), gradients, workspace.view());
    });
  });
  return y;
}

}  // namespace

Var CausalAttention(Tape& tape, const Var& qkv, const Batch& batch, const AttentionHeads& heads,
                    const ProbabilityDropout& dropout) {
  const PackedHeads p(qkv, batch, heads, dropout);
  const auto inputs = [p, qkv = qkv.value] {
    const View all = qkv->Get().Reshape(p.qkv);
    return p.Inputs(all, all);
  };
  return Attend(tape, p, inputs, [&tape, p, qkv](const AttentionBackwardOf& attention) {
    TensorPtr dqkv = tape.New(qkv.shape, qkv.dtype);
    const View all = dqkv->view().Reshape(p.qkv);
    attention({p.Q(all), p.K(all), p.V(all)});
    tape.Add(qkv.grad, std::move(dqkv));
  });
}

Var RotaryAttention(Tape& tape, const Var& qkv, const Batch& batch, const AttentionHeads& heads,
                    const Rotary& rotary, const ProbabilityDropout& dropout) {
  const PackedHeads p(qkv, batch, heads, dropout);
  const auto rotate = [&tape, p, table = rotary.table](RopeDirection direction, const View& qk) {
    Rope(tape.stream(), table->view(), p.positions, direction, p.QK(qk));
  };
  if (rotary.q_norm == nullptr) {
    rotate(RopeDirection::kForward, qkv.view().Reshape(p.qkv));
    const auto inputs = [p, qkv = qkv.value] {
      const View all = qkv->Get().Reshape(p.qkv);
      return p.Inputs(all, all);
    };
    return Attend(tape, p, inputs, [&tape, p, qkv, rotate](const AttentionBackwardOf& attention) {
      TensorPtr dqkv = tape.New(qkv.shape, qkv.dtype);
      const View all = dqkv->view().Reshape(p.qkv);
      attention({p.Q(all), p.K(all), p.V(all)});
      rotate(RopeDirection::kBackward, all);
      tape.Add(qkv.grad, std::move(dqkv));
    });
  }

  const auto& [table, q_norm, k_norm, eps] = rotary;
  const TensorPtr q_r = tape.New(Shape{p.out[0], p.out[1], p.heads}, DType::kFloat32);
  const TensorPtr k_r = tape.New(Shape{p.out[0], p.out[1], p.kv_heads}, DType::kFloat32);
  const auto qk = std::make_shared<Saved>(tape.New(p.qk, p.dtype));
  const auto normalise = [&tape, p, rotate, q_norm = q_norm, k_norm = k_norm, eps = eps, q_r, k_r,
                          qkv = qkv.value](const View& out) {
    const View all = qkv->Get().Reshape(p.qkv);
    RmsNormForward(tape.stream(), p.Q(all), q_norm->value(), eps, p.Q(out), q_r->view());
    RmsNormForward(tape.stream(), p.K(all), k_norm->value(), eps, p.K(out), k_r->view());
    rotate(RopeDirection::kForward, out);
  };
  normalise(qk->Get());
  tape.Cheap({qk}, [normalise](const std::vector<View>& out) { normalise(out[0]); });
  const auto inputs = [p, qk, qkv = qkv.value] {
    return p.Inputs(qk->Get(), qkv->Get().Reshape(p.qkv));
  };
  return Attend(tape, p, inputs,
                [&tape, p, qkv, rotate, q_norm = q_norm, k_norm = k_norm, q_r,
                 k_r](const AttentionBackwardOf& attention) {
                  const TensorPtr dqk = tape.New(p.qk, p.dtype);
                  TensorPtr dqkv = tape.New(qkv.shape, qkv.dtype);
                  const View from = dqk->view(), to = dqkv->view().Reshape(p.qkv);
                  attention({p.Q(from), p.K(from), p.V(to)});
                  rotate(RopeDirection::kBackward, from);
                  const View x = qkv.view().Reshape(p.qkv);
                  const auto backward = [&](const Parameter& norm, const TensorPtr& r,
                                            const Heads& x, const Heads& dy, const Heads& dx) {
                    const int64_t rows = r->view().NumElements(), cols = norm.shape()[0];
                    const Workspace workspace(
                        tape, RmsNormBackwardWorkspaceBytes(rows, cols, p.dtype, KernelsOf(tape)));
                    RmsNormBackward(tape.stream(), x, norm.value(), r->view(), dy, dx, GradOf(norm),
                                    workspace.view());
                  };
                  backward(*q_norm, q_r, p.Q(x), p.Q(from), p.Q(to));
                  backward(*k_norm, k_r, p.K(x), p.K(from), p.K(to));
                  tape.Add(qkv.grad, std::move(dqkv));
                });
}

Var Dropout(Tape& tape, const Var& x, const Batch& batch, uint32_t site, double rate) {
  const int64_t rows = batch.tokens.shape[0];
  const Shape samples{rows, x.shape.NumElements() / rows};
  const View keys = batch.sample_keys;
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

void HeadLoss(Tape& tape, const Var& x, const Parameter& table, const Batch& batch, float scale,
              View loss) {
  const View targets = Flat(batch.targets), weights = Flat(batch.weights);
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

void HeadLogits(Tape& tape, const Var& x, const Parameter& table, const Batch& batch,
                int64_t column, View logits) {
  const int64_t rows = batch.tokens.shape[0], seq = batch.tokens.shape[1];
  const int64_t hidden = x.shape[1], vocab = table.shape()[0];
  for (int64_t r = 0; r < rows; ++r) {
    const View last = x.view().Slice((r * seq + column) * hidden, hidden);
    LinearForward(tape.stream(), last.Reshape(Shape{1, hidden}), ValueOf(table),
                  WeightLayout::kOutIn, std::nullopt,
                  logits.Slice(r * vocab, vocab).Reshape(Shape{1, vocab}));
  }
}

}  // namespace fsdp
