// Tests: tests/trainer/nn/attention_layers_test.cc
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/nn/layer_tools.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_cached.h"
#include "trainer/ops/attention_math.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/head_mixing.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/rope.h"

namespace fsdp {
namespace {

// Where heads lie in qkv [batch, seq, heads + 2 kv_heads, head_dim], and the shapes beside it.
struct PackedHeads {
  int64_t heads, kv_heads;
  Shape qkv, qk, out;
  DType dtype;  // For all tensors but lse.
  View positions;
  AttentionDropout dropout;
  AttentionBackend backend = AttentionBackend::kOwn;

  PackedHeads(const Tape& tape, const Var& x, const TokenBatch& batch, const AttentionHeads& h,
              const ProbabilityDropout& drop)
      : heads(h.heads), kv_heads(h.kv_heads), dtype(x.dtype), positions(batch.positions) {
    // cuDNN looks at no documents, and drops otherwise.
    if (!tape.documents() && drop.rate == 0) backend = tape.attention();
    if (tape.attention() == AttentionBackend::kMath) backend = AttentionBackend::kMath;
    if (drop.rate > 0) {
      dropout = {drop.rate, static_cast<uint32_t>(drop.layer), batch.sample_keys};
    }
    const int64_t rows = batch.tokens.shape[0], seq = batch.tokens.shape[1];
    const int64_t all = heads + 2 * kv_heads, head_dim = x.shape[1] / all;
    qkv = Shape{rows, seq, all, head_dim};
    qk = Shape{rows, seq, heads + kv_heads, head_dim};
    out = Shape{rows, seq, heads, head_dim};
  }
  // `tensor` has the heads of q, k and perhaps v.
  Heads Q(const View& tensor) const { return {tensor, 0, heads}; }
  Heads K(const View& tensor) const { return {tensor, heads, kv_heads}; }
  Heads V(const View& tensor) const { return {tensor, heads + kv_heads, kv_heads}; }
  Heads QK(const View& tensor) const { return {tensor, 0, heads + kv_heads}; }
  AttentionInputs Inputs(const View& qk, const View& v) const {
    return {Q(qk), K(qk), V(v), positions, dropout, backend};
  }
};

// One call of attention.
struct Call {
  AttentionDims dims;
  DType dtype;  // For all tensors but lse.
  AttentionBackend backend;

  Shape out() const { return {dims.batch, dims.seq, dims.heads, dims.head_dim}; }
  Shape lse() const { return {dims.batch, dims.heads, dims.seq}; }
  Shape scores() const { return {dims.batch, dims.heads, dims.seq, dims.keys}; }
};

// Attention of what `inputs` gives when it is run, whose gradients `backward` takes over: called
// with attention's own backward, to be run on gradients' places.
using AttentionBackwardOf = std::function<void(const AttentionGradients&)>;
using Inputs = std::function<AttentionInputs()>;
using Backward = std::function<void(const AttentionBackwardOf&)>;

HeadMixing MixingOf(const MixedHeads& mixed) {
  if (mixed.matrix == nullptr) return {};
  return {mixed.matrix->value(), mixed.weight->value(), mixed.bias->value(), mixed.eps};
}

// Attention into y, that keeps its probabilities, and the weights where they are others.
Var AttendMath(Tape& tape, const Call& call, const Var& y, const Inputs& inputs,
               const Backward& backward, const MixedHeads& mixed) {
  const bool mixes = mixed.matrix != nullptr;
  const SavedPtr p = tape.NewSaved(call.scores(), call.dtype);
  const SavedPtr w = AttentionHasWeights(inputs().dropout, MixingOf(mixed))
                         ? tape.NewSaved(call.scores(), call.dtype)
                         : nullptr;
  const auto forward = [&tape, call, inputs, mixed](const View& out, const View& p, const View& w) {
    AttentionMathForward(tape.stream(), inputs(), MixingOf(mixed), p, w, out.Reshape(call.out()));
  };
  forward(y.view(), p->Get(), w ? w->Get() : View());
  std::vector<SavedPtr> cheap = {y.value, p};
  if (w) cheap.push_back(w);
  tape.Cheap(cheap, [forward](const std::vector<View>& out) {
    forward(out[0], out[1], out.size() > 2 ? out[2] : View());
  });
  tape.Push([&tape, call, inputs, backward, mixed, mixes, p, w, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    backward([&](const AttentionGradients& gradients) {
      const View probabilities = p->Get();  // It may make the weights, too.
      const View weights = w ? w->Get() : View();
      HeadMixingGradients of_mixing;
      if (mixes) of_mixing = {GradOf(*mixed.matrix), GradOf(*mixed.weight), GradOf(*mixed.bias)};
      const Workspace workspace(
          tape, AttentionMathBackwardWorkspaceBytes(call.dims, call.dtype, KernelsOf(tape), mixes));
      AttentionMathBackward(tape.stream(), inputs(), MixingOf(mixed), probabilities, weights,
                            dy->view().Reshape(call.out()), gradients, of_mixing, workspace.view());
    });
  });
  return y;
}

Var Attend(Tape& tape, const Call& call, const Inputs& inputs, const Backward& backward,
           const MixedHeads& mixed = {}) {
  const AttentionDims& d = call.dims;
  Var y = tape.NewVar(Shape{d.batch * d.seq, d.heads * d.head_dim}, call.dtype);
  if (KvCache* const cache = tape.cache()) {
    FSDP_CHECK(!tape.recording()) << "a cache has no backward";
    const KvCache::Layer& layer = cache->Next();
    const AttentionCachedDims dims{d.batch,    d.seq,      d.heads,
                                   d.kv_heads, d.head_dim, cache->capacity()};
    const Workspace workspace(tape,
                              AttentionCachedWorkspaceBytes(dims, call.dtype, KernelsOf(tape)));
    AttentionCached(tape.stream(), inputs(), layer.k, layer.v, y.view().Reshape(call.out()),
                    workspace.view());
    return y;
  }
  if (call.backend == AttentionBackend::kMath) {
    return AttendMath(tape, call, y, inputs, backward, mixed);
  }
  const auto lse = tape.NewSaved(call.lse(), DType::kFloat32);
  const auto forward = [&tape, call, inputs](const View& out, const View& lse) {
    const Workspace workspace(
        tape, AttentionForwardWorkspaceBytes(call.dims, call.dtype, KernelsOf(tape), call.backend));
    AttentionForward(tape.stream(), inputs(), out.Reshape(call.out()), lse, workspace.view());
  };
  forward(y.view(), lse->Get());
  tape.Cheap({y.value, lse}, [forward](const std::vector<View>& out) { forward(out[0], out[1]); });
  tape.Push([&tape, call, inputs, backward, out = y.value, lse, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    backward([&](const AttentionGradients& gradients) {
      const View y = out->Get();  // Before lse: it may make both again.
      const Workspace workspace(tape, AttentionBackwardWorkspaceBytes(
                                          call.dims, call.dtype, KernelsOf(tape), call.backend));
      AttentionBackward(tape.stream(), inputs(), y.Reshape(call.out()), lse->Get(),
                        dy->view().Reshape(call.out()), gradients, workspace.view());
    });
  });
  return y;
}

Call CallOf(const PackedHeads& p) {
  return {{p.out[0], p.out[1], p.heads, p.kv_heads, p.out[3]}, p.dtype, p.backend};
}

// Adds the members of `attending` to the inputs of a call.
class Addition {
 public:
  Addition(const Tape& tape, int64_t rows, const Attending& attending,
           const ProbabilityDropout& dropout)
      : rows_(rows), attending_(attending) {
    const bool mixes = attending.mixed.matrix != nullptr;  // Tiles have no probabilities to mix.
    if (mixes || tape.attention() == AttentionBackend::kMath) backend_ = AttentionBackend::kMath;
    if (dropout.rate > 0) {
      dropout_ = {dropout.rate, static_cast<uint32_t>(dropout.layer), attending.sample_keys};
    }
  }

  Call CallOf(const Heads& q, const Heads& k) const {
    const Shape &from = q.tensor.shape, &to = k.tensor.shape;
    return {{.batch = rows_,
             .seq = from[1],
             .heads = q.count,
             .kv_heads = k.count,
             .head_dim = from[3],
             .keys = to[1],
             .bias = HasBias()},
            q.tensor.dtype,
            backend_};
  }
  AttentionInputs Inputs(const Heads& q, const Heads& k, const Heads& v) const {
    AttentionInputs in{q, k, v, attending_.positions, dropout_, backend_};
    in.mask = attending_.mask;
    in.lengths = attending_.lengths;
    in.scale = attending_.scale;
    if (HasBias()) in.bias = {attending_.bias.value->Get(), attending_.buckets->view()};
    return in;
  }
  // Runs attention's backward, which gives the bias its gradient, too.
  void Backward(Tape& tape, const AttentionBackwardOf& attention, const Heads& dq, const Heads& dk,
                const Heads& dv) const {
    AttentionGradients gradients{dq, dk, dv};
    if (!HasBias() || attending_.bias.grad == nullptr) return attention(gradients);
    TensorPtr dbias = tape.New(attending_.bias.shape, attending_.bias.dtype);
    gradients.bias = dbias->view();
    attention(gradients);
    tape.Add(attending_.bias.grad, std::move(dbias));
  }

 private:
  bool HasBias() const { return attending_.bias.value != nullptr; }

  int64_t rows_;
  Attending attending_;
  AttentionDropout dropout_;
  AttentionBackend backend_ = AttentionBackend::kOwn;
};

// Heads [first, first + count) of all that a value of `rows` samples has.
Heads HeadsIn(const View& value, int64_t rows, int64_t all, int64_t first, int64_t count) {
  const Shape& s = value.shape;
  return {value.Reshape(Shape{rows, s[0] / rows, all, s[1] / all}), first, count};
}

}  // namespace

Var CausalAttention(Tape& tape, const Var& qkv, const TokenBatch& batch,
                    const AttentionHeads& heads, const ProbabilityDropout& dropout) {
  const PackedHeads p(tape, qkv, batch, heads, dropout);
  const auto inputs = [p, qkv = qkv.value] {
    const View all = qkv->Get().Reshape(p.qkv);
    return p.Inputs(all, all);
  };
  return Attend(tape, CallOf(p), inputs, [&tape, p, qkv](const AttentionBackwardOf& attention) {
    TensorPtr dqkv = tape.New(qkv.shape, qkv.dtype);
    const View all = dqkv->view().Reshape(p.qkv);
    attention({p.Q(all), p.K(all), p.V(all)});
    tape.Add(qkv.grad, std::move(dqkv));
  });
}

Var SelfAttention(Tape& tape, const Var& qkv, int64_t rows, const AttentionHeads& h,
                  const Attending& attending, const ProbabilityDropout& dropout) {
  FSDP_CHECK(tape.cache() == nullptr || attending.mask == AttentionMask::kCausal)
      << "a cache is of causal attention alone";
  const Addition more(tape, rows, attending, dropout);
  struct Packed {
    Heads q, k, v;
  };
  const auto packed = [rows, h](const View& value) {
    const int64_t all = h.heads + 2 * h.kv_heads;
    return Packed{HeadsIn(value, rows, all, 0, h.heads),
                  HeadsIn(value, rows, all, h.heads, h.kv_heads),
                  HeadsIn(value, rows, all, h.heads + h.kv_heads, h.kv_heads)};
  };
  const Packed now = packed(qkv.view());
  const auto inputs = [more, packed, qkv = qkv.value] {
    const Packed p = packed(qkv->Get());
    return more.Inputs(p.q, p.k, p.v);
  };
  return Attend(
      tape, more.CallOf(now.q, now.k), inputs,
      [&tape, more, packed, qkv](const AttentionBackwardOf& attention) {
        TensorPtr dqkv = tape.New(qkv.shape, qkv.dtype);
        const Packed d = packed(dqkv->view());
        more.Backward(tape, attention, d.q, d.k, d.v);
        tape.Add(qkv.grad, std::move(dqkv));
      },
      attending.mixed);
}

Var CrossAttention(Tape& tape, const Var& q, const Var& kv, int64_t rows, const AttentionHeads& h,
                   const Attending& attending, const ProbabilityDropout& dropout) {
  FSDP_CHECK(tape.cache() == nullptr) << "a cache keeps what a function makes";
  const Addition more(tape, rows, attending, dropout);
  const auto q_of = [rows, h](const View& value) {
    return HeadsIn(value, rows, h.heads, 0, h.heads);
  };
  const auto k_of = [rows, h](const View& value) {
    return HeadsIn(value, rows, 2 * h.kv_heads, 0, h.kv_heads);
  };
  const auto v_of = [rows, h](const View& value) {
    return HeadsIn(value, rows, 2 * h.kv_heads, h.kv_heads, h.kv_heads);
  };
  const auto inputs = [more, q_of, k_of, v_of, q = q.value, kv = kv.value] {
    return more.Inputs(q_of(q->Get()), k_of(kv->Get()), v_of(kv->Get()));
  };
  return Attend(
      tape, more.CallOf(q_of(q.view()), k_of(kv.view())), inputs,
      [&tape, more, q_of, k_of, v_of, q, kv](const AttentionBackwardOf& attention) {
        TensorPtr dq = tape.New(q.shape, q.dtype), dkv = tape.New(kv.shape, kv.dtype);
        more.Backward(tape, attention, q_of(dq->view()), k_of(dkv->view()), v_of(dkv->view()));
        if (q.grad != nullptr) tape.Add(q.grad, std::move(dq));
        if (kv.grad != nullptr) tape.Add(kv.grad, std::move(dkv));
      },
      attending.mixed);
}

Var CrossAttention(Tape& tape, const Var& q, const std::function<Var()>& kv, int64_t rows,
                   const AttentionHeads& h, const Attending& attending,
                   const ProbabilityDropout& dropout) {
  KvCache* const cache = tape.cache();
  if (cache == nullptr) return CrossAttention(tape, q, kv(), rows, h, attending, dropout);
  FSDP_CHECK(!tape.recording()) << "a cache has no backward";
  KvCache::Encoded& encoded = cache->NextEncoded();
  if (!encoded.filled) {
    const Var made = kv();
    Copy(tape.stream(), made.view(), encoded.kv);
    encoded.filled = true;
  }
  const Heads of_q = HeadsIn(q.view(), rows, h.heads, 0, h.heads);
  const Heads k = HeadsIn(encoded.kv, rows, 2 * h.kv_heads, 0, h.kv_heads);
  const Heads v = HeadsIn(encoded.kv, rows, 2 * h.kv_heads, h.kv_heads, h.kv_heads);
  const Addition more(tape, rows, attending, dropout);
  const Call call = more.CallOf(of_q, k);
  const AttentionDims& d = call.dims;
  const AttentionCachedDims dims{d.batch, d.seq, d.heads, d.kv_heads, d.head_dim, d.keys};
  Var y = tape.NewVar(Shape{d.batch * d.seq, d.heads * d.head_dim}, call.dtype);
  const Workspace workspace(tape, AttentionCachedWorkspaceBytes(dims, call.dtype, KernelsOf(tape)));
  AttentionCached(tape.stream(), more.Inputs(of_q, k, v), {}, {}, y.view().Reshape(call.out()),
                  workspace.view());
  return y;
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
    return Attend(tape, CallOf(p), inputs,
                  [&tape, p, qkv, rotate](const AttentionBackwardOf& attention) {
                    TensorPtr dqkv = tape.New(qkv.shape, qkv.dtype);
                    const View all = dqkv->view().Reshape(p.qkv);
                    attention({p.Q(all), p.K(all), p.V(all)});
                    rotate(RopeDirection::kBackward, all);
                    tape.Add(qkv.grad, std::move(dqkv));
                  });
  }

  const auto& [table, q_norm, k_norm, eps] = rotary;
  const auto rows_of = [&](const Parameter& norm, int64_t heads) {
    const int64_t rows = heads * p.out[3] / norm.shape()[0];
    return tape.New(Shape{p.out[0], p.out[1], rows}, DType::kFloat32);
  };
  const TensorPtr q_r = rows_of(*q_norm, p.heads), k_r = rows_of(*k_norm, p.kv_heads);
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
  return Attend(tape, CallOf(p), inputs,
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
