#include "trainer/nn/layers.h"

#include <optional>
#include <vector>

#include "trainer/ops/attention.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/embedding.h"
#include "trainer/ops/gelu.h"
#include "trainer/ops/head_loss.h"
#include "trainer/ops/layer_norm.h"
#include "trainer/ops/lora.h"

namespace fsdp {
namespace {

View Flat(const View& view) { return view.Reshape(Shape{view.NumElements()}); }

// Where the gradient goes: nowhere if the parameter is frozen.
std::optional<View> GradOf(const Parameter& parameter) {
  return parameter.trainable() ? std::optional(parameter.grad()) : std::nullopt;
}

}  // namespace

Var Embed(Tape& tape, const Parameter& token_table, const Parameter& position_table,
          const Batch& batch) {
  const View tokens = Flat(batch.tokens), positions = Flat(batch.positions);
  Var y = tape.NewVar(Shape{tokens.NumElements(), token_table.shape()[1]});
  EmbeddingForward(tape.stream(), tokens, positions, token_table.value(), position_table.value(),
                   y.view());
  tape.Push([&tape, &token_table, &position_table, tokens, positions, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    EmbeddingBackward(tape.stream(), tokens, positions, dy->view(), GradOf(token_table),
                      GradOf(position_table));
  });
  return y;
}

Var LayerNorm(Tape& tape, const Var& x, const Parameter& weight, const Parameter& bias, float eps) {
  const int64_t rows = x.shape[0], cols = x.shape[1];
  Var y = tape.NewVar(x.shape);
  const TensorPtr mean = tape.New(Shape{rows}), rstd = tape.New(Shape{rows});
  const auto forward = [&tape, &weight, &bias, eps, x = x.value, mean, rstd](View out) {
    LayerNormForward(tape.stream(), x->Get(), weight.value(), bias.value(), eps, out, mean->view(),
                     rstd->view());
  };
  forward(y.view());
  if (!tape.recording()) return y;
  tape.Cheap({y.value}, [forward](const std::vector<View>& out) { forward(out[0]); });
  tape.Push([&tape, &weight, &bias, rows, cols, x, mean, rstd, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    const TensorPtr workspace =
        tape.New(Shape{LayerNormBackwardWorkspace(rows, cols)}, DType::kUInt8);
    const auto backward = [&](LayerNormDx mode, const View& dx) {
      LayerNormBackward(tape.stream(), x.view(), weight.value(), mean->view(), rstd->view(),
                        dy->view(), mode, dx, GradOf(weight), GradOf(bias), workspace->view());
    };
    if (*x.grad && Tape::Owned(*x.grad)) {
      backward(LayerNormDx::kAdd, (*x.grad)->view());
    } else {
      TensorPtr dx = Tape::Owned(dy) ? dy : tape.New(x.shape);
      backward(LayerNormDx::kOverwrite, dx->view());
      dy = nullptr;
      tape.Add(x.grad, std::move(dx));
    }
  });
  return y;
}

Var Linear(Tape& tape, const Var& x, const Parameter& weight, WeightLayout layout,
           const Parameter& bias) {
  const int64_t out = weight.shape()[layout == WeightLayout::kInOut ? 1 : 0];
  Var y = tape.NewVar(Shape{x.shape[0], out});
  LinearForward(tape.stream(), x.view(), weight.value(), layout, bias.value(), y.view());
  std::vector<TensorPtr> inner;  // u of each adapter.
  for (const Adapter& adapter : weight.adapters()) {
    inner.push_back(tape.New(Shape{x.shape[0], adapter.a->shape()[0]}));
    LoraForward(tape.stream(), x.view(), adapter.a->value(), adapter.b->value(), adapter.scale,
                adapter.column, inner.back()->view(), y.view());
  }
  tape.Push([&tape, &weight, &bias, layout, x, inner, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = tape.New(x.shape);
    LinearBackward(tape.stream(), x.view(), weight.value(), layout, dy->view(), dx->view(),
                   GradOf(weight), GradOf(bias));
    for (size_t i = 0; i < inner.size(); ++i) {
      const Adapter& adapter = weight.adapters()[i];
      const View u = inner[i]->view();
      const TensorPtr workspace =
          tape.New(Shape{LoraBackwardWorkspace(u.shape[0], u.shape[1])}, DType::kUInt8);
      LoraBackward(tape.stream(), x.view(), u, adapter.a->value(), adapter.b->value(),
                   adapter.scale, dy->view(), adapter.column, dx->view(), GradOf(*adapter.a),
                   GradOf(*adapter.b), workspace->view());
    }
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

Var Gelu(Tape& tape, const Var& x) {
  Var y = tape.NewVar(x.shape);
  const auto forward = [&tape, x = x.value](View out) {
    GeluForward(tape.stream(), x->Get(), out);
  };
  forward(y.view());
  tape.Cheap({y.value}, [forward](const std::vector<View>& out) { forward(out[0]); });
  tape.Push([&tape, x, grad = y.grad] {
    TensorPtr dy = Tape::Take(grad);
    TensorPtr dx = Tape::Owned(dy) ? dy : tape.New(x.shape);
    GeluBackward(tape.stream(), x.view(), dy->view(), dx->view());
    dy = nullptr;
    tape.Add(x.grad, std::move(dx));
  });
  return y;
}

Var CausalAttention(Tape& tape, const Var& qkv, int64_t batch, int64_t seq, int64_t heads) {
  const int64_t hidden = qkv.shape[1] / 3;
  const Shape packed{batch, seq, 3, heads, hidden / heads},
      split{batch, seq, heads, hidden / heads};
  const Shape lse_shape{batch, heads, seq};
  Var y = tape.NewVar(Shape{batch * seq, hidden});
  const auto lse = std::make_shared<Saved>(tape.New(lse_shape));
  const auto forward = [&tape, packed, split, qkv = qkv.value](const View& out, const View& lse) {
    AttentionForward(tape.stream(), qkv->Get().Reshape(packed), out.Reshape(split), lse);
  };
  forward(y.view(), lse->Get());
  tape.Cheap({y.value, lse}, [forward](const std::vector<View>& out) { forward(out[0], out[1]); });
  tape.Push([&tape, packed, split, qkv, out = y.value, lse, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    TensorPtr dqkv = tape.New(qkv.shape);
    const View y = out->Get();  // Before lse: it may make both again.
    AttentionBackward(tape.stream(), qkv.view().Reshape(packed), y.Reshape(split), lse->Get(),
                      dy->view().Reshape(split), dqkv->view().Reshape(packed));
    tape.Add(qkv.grad, std::move(dqkv));
  });
  return y;
}

Var Residual(Tape& tape, const Var& x, const Var& y) {
  Var sum = tape.NewVar(x.shape);
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
  const Shape scratch{HeadLossWorkspaceBytes(x.shape[0], table.shape()[0])};
  if (!tape.recording()) {
    const TensorPtr workspace = tape.New(scratch, DType::kUInt8);
    HeadLossForward(tape.stream(), x.view(), table.value(), targets, weights, scale, loss,
                    workspace->view());
    return;
  }
  tape.Push([&tape, &table, x, targets, weights, scale, loss, scratch] {
    const TensorPtr workspace = tape.New(scratch, DType::kUInt8);
    TensorPtr dx = tape.New(x.shape);
    HeadLossForwardBackward(tape.stream(), x.view(), table.value(), targets, weights, scale, loss,
                            dx->view(), GradOf(table), workspace->view());
    tape.Add(x.grad, std::move(dx));
  });
}

}  // namespace fsdp
