// Tests: tests/trainer/nn/layers_test.cc
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/nn/layer_tools.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_cached.h"
#include "trainer/ops/rms_norm.h"
#include "trainer/ops/rope.h"

namespace fsdp {
namespace {

// Where heads lie in qkv [batch, seq, heads + 2 kv_heads, head_dim], and the shapes beside it.
struct PackedHeads {
  int64_t heads, kv_heads;
  Shape qkv, qk, out, lse;
  DType dtype;  // Of all but lse.
  View positions;
  AttentionDropout dropout;
  AttentionBackend backend = AttentionBackend::kOwn;

  PackedHeads(const Tape& tape, const Var& x, const TokenBatch& batch, const AttentionHeads& h,
              const ProbabilityDropout& drop)
      : heads(h.heads), kv_heads(h.kv_heads), dtype(x.dtype), positions(batch.positions) {
    // Others look at no documents, and drop otherwise.
    if (!tape.documents() && drop.rate == 0) backend = tape.attention();
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
    return {Q(qk), K(qk), V(v), positions, dropout, backend};
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
  const auto lse = tape.NewSaved(p.lse, DType::kFloat32);
  const auto forward = [&tape, p, inputs](const View& out, const View& lse) {
    const Workspace workspace(
        tape, AttentionForwardWorkspaceBytes(p.Dims(), p.dtype, KernelsOf(tape), p.backend));
    AttentionForward(tape.stream(), inputs(), out.Reshape(p.out), lse, workspace.view());
  };
  forward(y.view(), lse->Get());
  tape.Cheap({y.value, lse}, [forward](const std::vector<View>& out) { forward(out[0], out[1]); });
  tape.Push([&tape, p, inputs, backward, out = y.value, lse, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    backward([&](const AttentionGradients& gradients) {
      const View y = out->Get();  // Before lse: it may make both again.
      const Workspace workspace(
          tape, AttentionBackwardWorkspaceBytes(p.Dims(), p.dtype, KernelsOf(tape), p.backend));
      AttentionBackward(tape.stream(), inputs(), y.Reshape(p.out), lse->Get(),
                        dy->view().Reshape(p.out), gradients, workspace.view());
    });
  });
  return y;
}

}  // namespace

Var CausalAttention(Tape& tape, const Var& qkv, const TokenBatch& batch,
                    const AttentionHeads& heads, const ProbabilityDropout& dropout) {
  const PackedHeads p(tape, qkv, batch, heads, dropout);
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

Var RotaryAttention(Tape& tape, const Var& qkv, const TokenBatch& batch,
                    const AttentionHeads& heads, const Rotary& rotary,
                    const ProbabilityDropout& dropout) {
  const PackedHeads p(tape, qkv, batch, heads, dropout);
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
  const auto qk = tape.NewSaved(p.qk, p.dtype);
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

}  // namespace fsdp
