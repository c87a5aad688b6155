#include "trainer/bench/op_cases.h"

#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "trainer/bench/expert_cases.h"
#include "trainer/core/argsort.h"
#include "trainer/ops/activations.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/attention_math.h"
#include "trainer/ops/convolution.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/embedding.h"
#include "trainer/ops/feature_vectors.h"
#include "trainer/ops/head_loss.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/logit_loss.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/quantize.h"
#include "trainer/ops/quantized_layout.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/rope.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/swiglu.h"
#include "trainer/ops/update.h"

namespace fsdp {
namespace {

using Call = OpCase::Call;

// A layer as GPT-2 has it, with a bias.
void AddLinear(std::vector<OpCase>& cases, const std::string& name, int64_t rows, int64_t in,
               int64_t out) {
  cases.push_back({name + ", forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, in}), w = t.Values({in, out}),
                                b = t.Values({out}), y = t.Values({rows, out});
                     return [=](Stream& s) { LinearForward(s, x, w, WeightLayout::kInOut, b, y); };
                   }});
  cases.push_back(
      {name + ", backward", [=](BenchTensors& t) -> Call {
         const View x = t.Values({rows, in}), w = t.Values({in, out}), dy = t.Values({rows, out}),
                    dx = t.Values({rows, in}), dw = t.Values({in, out}), db = t.Values({out});
         return [=](Stream& s) { LinearBackward(s, x, w, WeightLayout::kInOut, dy, dx, dw, db); };
       }});
}

// Products with something done on their way.
void AddFused(std::vector<OpCase>& cases, int64_t rows, int64_t hidden, int64_t inner) {
  constexpr auto kLayout = WeightLayout::kInOut;
  cases.push_back({"linear up and gelu, forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, hidden}), w = t.Values({hidden, inner}),
                                b = t.Values({inner}), u = t.Values({rows, inner}),
                                y = t.Values({rows, inner});
                     return [=](Stream& s) { LinearGeluForward(s, x, w, kLayout, b, u, y); };
                   }});
  cases.push_back({"linear down and gelu, backward", [=](BenchTensors& t) -> Call {
                     const View u = t.Values({rows, inner}), x = t.Values({rows, inner}),
                                w = t.Values({inner, hidden}), dy = t.Values({rows, hidden}),
                                du = t.Values({rows, inner}), dw = t.Values({inner, hidden}),
                                db = t.Values({hidden});
                     return [=](Stream& s) {
                       LinearGeluBackward(s, u, x, w, kLayout, dy, du, dw, db);
                     };
                   }});
  cases.push_back({"linear down and residual, forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, inner}), w = t.Values({inner, hidden}),
                                b = t.Values({hidden}), residual = t.Values({rows, hidden}),
                                y = t.Values({rows, hidden});
                     return [=](Stream& s) {
                       LinearResidualForward(s, x, w, kLayout, b, residual, y);
                     };
                   }});
}

void AddAttention(std::vector<OpCase>& cases, const OpShapes& shapes, AttentionBackend backend) {
  const int64_t batch = shapes.batch, seq = shapes.seq, heads = shapes.heads;
  const int64_t head_dim = shapes.hidden / heads;
  const Shape qkv_shape{batch, seq, 3 * heads, head_dim}, out_shape{batch, seq, heads, head_dim};
  const Shape lse_shape{batch, heads, seq};
  const AttentionDims dims = DimsOf(shapes);
  const auto positions = [=](BenchTensors& t) {
    return t.Int({batch, seq}, [=](int64_t i) { return static_cast<int32_t>(i % seq); });
  };
  const auto part = [=](const View& tensor, int64_t p) { return Heads(tensor, p * heads, heads); };
  const auto inputs = [=](const View& qkv, BenchTensors& t) {
    return AttentionInputs{part(qkv, 0), part(qkv, 1), part(qkv, 2), positions(t), {}, backend};
  };
  cases.push_back({"attention, forward", [=](BenchTensors& t) -> Call {
                     const View qkv = t.Values(qkv_shape), out = t.Values(out_shape),
                                lse = t.Float(lse_shape);
                     const AttentionInputs in = inputs(qkv, t);
                     const View workspace = t.Workspace(
                         AttentionForwardWorkspaceBytes(dims, t.dtype(), t.kernel_type(), backend));
                     return [=](Stream& s) { AttentionForward(s, in, out, lse, workspace); };
                   }});
  cases.push_back(
      {"attention, backward", [=](BenchTensors& t) -> Call {
         const View qkv = t.Values(qkv_shape), dqkv = t.Values(qkv_shape),
                    out = t.Values(out_shape), dout = t.Values(out_shape), lse = t.Float(lse_shape);
         const AttentionInputs in = inputs(qkv, t);
         const AttentionGradients gradients{part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)};
         const View workspace = t.Workspace(
             AttentionBackwardWorkspaceBytes(dims, t.dtype(), t.kernel_type(), backend));
         return [=](Stream& s) { AttentionBackward(s, in, out, lse, dout, gradients, workspace); };
       }});
  cases.push_back({"rope", [=](BenchTensors& t) -> Call {
                     const View table = t.Float({seq, 2, head_dim / 2}), qkv = t.Values(qkv_shape),
                                at = positions(t);
                     const Heads queries_and_keys(qkv, 0, 2 * heads);
                     return [=](Stream& s) {
                       Rope(s, table, at, RopeDirection::kForward, queries_and_keys);
                     };
                   }});
}

// With the probabilities in memory; `mixes`: and the heads mixed behind the softmax.
void AddMathAttention(std::vector<OpCase>& cases, const OpShapes& shapes, bool mixes) {
  const std::string name = mixes ? "attention by math, heads mixed" : "attention by math";
  const AttentionDims dims = DimsOf(shapes);
  const int64_t batch = shapes.batch, seq = shapes.seq, heads = shapes.heads;
  const Shape qkv_shape{batch, seq, 3 * heads, dims.head_dim},
      out_shape{batch, seq, heads, dims.head_dim}, pairs{batch, heads, seq, seq};
  const auto part = [=](const View& tensor, int64_t p) { return Heads(tensor, p * heads, heads); };
  const auto inputs = [=](BenchTensors& t) {
    const View qkv = t.Values(qkv_shape);
    return AttentionInputs{.q = part(qkv, 0),
                           .k = part(qkv, 1),
                           .v = part(qkv, 2),
                           .positions = {},
                           .backend = AttentionBackend::kMath,
                           .mask = AttentionMask::kFull};
  };
  const auto mixing = [=](BenchTensors& t) -> HeadMixing {
    if (!mixes) return {};
    return {t.Float({heads, heads}), t.Float({heads}), t.Float({heads}), 1e-5f};
  };
  const auto mixing_gradients = [=](BenchTensors& t) -> HeadMixingGradients {
    if (!mixes) return {};
    return {t.Float({heads, heads}), t.Float({heads}), t.Float({heads})};
  };
  const auto weights = [=](BenchTensors& t) { return mixes ? t.Values(pairs) : View{}; };
  cases.push_back({name + ", forward", [=](BenchTensors& t) -> Call {
                     const AttentionInputs in = inputs(t);
                     const HeadMixing mixed = mixing(t);
                     const View p = t.Values(pairs), w = weights(t), out = t.Values(out_shape);
                     return [=](Stream& s) { AttentionMathForward(s, in, mixed, p, w, out); };
                   }});
  cases.push_back(
      {name + ", backward", [=](BenchTensors& t) -> Call {
         const AttentionInputs in = inputs(t);
         const HeadMixing mixed = mixing(t);
         const View p = t.Values(pairs), w = weights(t), dout = t.Values(out_shape),
                    dqkv = t.Values(qkv_shape);
         const AttentionGradients gradients{part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)};
         const HeadMixingGradients of_mixing = mixing_gradients(t);
         const View workspace = t.Workspace(
             AttentionMathBackwardWorkspaceBytes(dims, t.dtype(), t.kernel_type(), mixes));
         return [=](Stream& s) {
           AttentionMathBackward(s, in, mixed, p, w, dout, gradients, of_mixing, workspace);
         };
       }});
}

void AddNorms(std::vector<OpCase>& cases, int64_t rows, int64_t cols) {
  cases.push_back({"layer_norm, forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, cols}), w = t.Values({cols}),
                                b = t.Values({cols}), y = t.Values({rows, cols}),
                                mean = t.Float({rows}), rstd = t.Float({rows});
                     return [=](Stream& s) { LayerNormForward(s, x, w, b, 1e-5f, y, mean, rstd); };
                   }});
  cases.push_back(
      {"layer_norm, backward", [=](BenchTensors& t) -> Call {
         const View x = t.Values({rows, cols}), w = t.Values({cols}), dy = t.Values({rows, cols}),
                    dx = t.Values({rows, cols}), dw = t.Values({cols}), db = t.Values({cols}),
                    mean = t.Float({rows}), rstd = t.Float({rows});
         const View workspace =
             t.Workspace(LayerNormBackwardWorkspaceBytes(rows, cols, t.dtype(), t.kernel_type()));
         return [=](Stream& s) {
           LayerNormBackward(s, x, w, mean, rstd, dy, NormDx::kAdd, dx, dw, db, workspace);
         };
       }});
  cases.push_back({"rms_norm, forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, cols}), w = t.Values({cols}),
                                y = t.Values({rows, cols}), r = t.Float({rows});
                     return [=](Stream& s) { RmsNormForward(s, x, w, 1e-5f, y, r); };
                   }});
  cases.push_back(
      {"rms_norm, backward", [=](BenchTensors& t) -> Call {
         const View x = t.Values({rows, cols}), w = t.Values({cols}), dy = t.Values({rows, cols}),
                    dx = t.Values({rows, cols}), dw = t.Values({cols}), r = t.Float({rows});
         const View workspace =
             t.Workspace(RmsNormBackwardWorkspaceBytes(rows, cols, t.dtype(), t.kernel_type()));
         return
             [=](Stream& s) { RmsNormBackward(s, x, w, r, dy, NormDx::kAdd, dx, dw, workspace); };
       }});
}

void AddActivations(std::vector<OpCase>& cases, int64_t rows, int64_t cols) {
  const std::pair<const char*, Activation> kFunctions[] = {{"gelu", Activation::kGelu},
                                                           {"gelu_exact", Activation::kGeluExact},
                                                           {"relu", Activation::kRelu},
                                                           {"sigmoid", Activation::kSigmoid}};
  for (const auto& [name, f] : kFunctions) {
    cases.push_back({name + std::string(", forward"), [=, f = f](BenchTensors& t) -> Call {
                       const View x = t.Values({rows, cols}), y = t.Values({rows, cols});
                       return [=](Stream& s) { ActivationForward(s, f, x, y); };
                     }});
    cases.push_back({name + std::string(", backward"), [=, f = f](BenchTensors& t) -> Call {
                       const View saved = t.Values({rows, cols}), dy = t.Values({rows, cols}),
                                  dx = t.Values({rows, cols});
                       return [=](Stream& s) { ActivationBackward(s, f, saved, dy, dx); };
                     }});
  }
  struct Gated {
    const char* name;
    void (*forward)(Stream& stream, ConstView x, View y);
    void (*backward)(Stream& stream, ConstView x, ConstView dy, View dx);
  };
  for (const Gated& gated : {Gated{"swiglu", SwigluForward, SwigluBackward},
                             Gated{"geglu", GatedGeluForward, GatedGeluBackward}}) {
    cases.push_back({gated.name + std::string(", forward"), [=](BenchTensors& t) -> Call {
                       const View x = t.Values({rows, 2 * cols}), y = t.Values({rows, cols});
                       return [=](Stream& s) { gated.forward(s, x, y); };
                     }});
    cases.push_back({gated.name + std::string(", backward"), [=](BenchTensors& t) -> Call {
                       const View x = t.Values({rows, 2 * cols}), dy = t.Values({rows, cols}),
                                  dx = t.Values({rows, 2 * cols});
                       return [=](Stream& s) { gated.backward(s, x, dy, dx); };
                     }});
  }
}

// Operations that mix feature vectors of `width`: 16 of a sample, or as many as divide the rows.
void AddVectors(std::vector<OpCase>& cases, int64_t rows, int64_t width,
                const ConvolutionBackend& convolution) {
  const int64_t vectors = std::gcd(rows, int64_t{16}), samples = rows / vectors;
  if (vectors < 2) return;
  cases.push_back(
      {"swap vectors", [=](BenchTensors& t) -> Call {
         const View x = t.Values({rows, width}), y = t.Values({samples * width, vectors});
         return [=](Stream& s) { SwapVectors(s, x, samples, y); };
       }});
  cases.push_back({"pair dots, forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, width}),
                                y = t.Values({samples, vectors * (vectors - 1) / 2});
                     return [=](Stream& s) { PairDotsForward(s, x, 1, y); };
                   }});
  cases.push_back({"pair dots, backward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, width}), dx = t.Values({rows, width}),
                                dy = t.Values({samples, vectors * (vectors - 1) / 2});
                     return [=](Stream& s) { PairDotsBackward(s, x, 1, dy, dx); };
                   }});
  cases.push_back({"multiply, forward", [=](BenchTensors& t) -> Call {
                     const View a = t.Values({rows, width}), b = t.Values({rows, width}),
                                y = t.Values({rows, width});
                     return [=](Stream& s) { MultiplyForward(s, a, b, y); };
                   }});
  cases.push_back({"multiply, backward", [=](BenchTensors& t) -> Call {
                     const View a = t.Values({rows, width}), b = t.Values({rows, width}),
                                dy = t.Values({rows, width}), da = t.Values({rows, width}),
                                db = t.Values({rows, width});
                     return [=](Stream& s) { MultiplyBackward(s, a, b, dy, da, db); };
                   }});
  // Three taps along the vectors.
  const ConvolutionWindow window{.padding_height = 1};
  const Shape images{samples, vectors, 1, width}, kernel{width, width, 3, 1};
  const ConvolutionShape shape = ShapeOfConvolution("convolution", images, kernel, window);
  cases.push_back({"convolution, forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values(images), w = t.Values(kernel), y = t.Values(images);
                     const View workspace = t.Workspace(ConvolutionForwardWorkspaceBytes(
                         shape, t.dtype(), t.dtype(), t.kernel_type(), convolution));
                     return [=](Stream& s) {
                       ConvolutionForward(s, x, w, window, y, workspace, convolution);
                     };
                   }});
  cases.push_back({"convolution, backward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values(images), w = t.Values(kernel), dy = t.Values(images),
                                dx = t.Values(images), dw = t.Values(kernel);
                     const View workspace = t.Workspace(ConvolutionBackwardWorkspaceBytes(
                         shape, t.dtype(), t.dtype(), true, true, t.kernel_type(), convolution));
                     return [=](Stream& s) {
                       ConvolutionBackward(s, x, w, window, dy, dx, dw, workspace, convolution);
                     };
                   }});
}

// A classifier has a row for each sample.
void AddClassLosses(std::vector<OpCase>& cases, int64_t rows, int64_t classes) {
  cases.push_back({"class loss", [=](BenchTensors& t) -> Call {
                     const View z = t.Values({rows, classes}), dz = t.Values({rows, classes}),
                                weights = t.Constant({rows}, 1), loss = t.Constant({1}, 0);
                     const View targets = t.Int({rows}, [=](int64_t i) {
                       return static_cast<int32_t>(i * 7919 % classes);
                     });
                     const View workspace = t.Workspace(ClassLossWorkspaceBytes(rows));
                     return [=](Stream& s) {
                       ClassLossForwardBackward(s, z, targets, weights, 1e-3f, std::nullopt, loss,
                                                dz, workspace);
                     };
                   }});
  cases.push_back({"binary loss", [=](BenchTensors& t) -> Call {
                     const View z = t.Values({rows}), dz = t.Values({rows}),
                                targets = t.Constant({rows}, 1), weights = t.Constant({rows}, 1),
                                loss = t.Constant({1}, 0);
                     const View workspace = t.Workspace(BinaryLossWorkspaceBytes(rows));
                     return [=](Stream& s) {
                       BinaryLossForwardBackward(s, z, targets, weights, 1e-3f, std::nullopt, loss,
                                                 dz, workspace);
                     };
                   }});
}

void AddEnds(std::vector<OpCase>& cases, const OpShapes& shapes) {
  const int64_t rows = shapes.batch * shapes.seq, cols = shapes.hidden, vocab = shapes.vocab;
  const int64_t seq = shapes.seq;
  const auto token = [=](int64_t i) { return static_cast<int32_t>(i * 7919 % vocab); };
  const auto position = [=](int64_t i) { return static_cast<int32_t>(i % seq); };
  cases.push_back({"embedding, forward", [=](BenchTensors& t) -> Call {
                     const View tokens = t.Int({rows}, token), positions = t.Int({rows}, position),
                                wte = t.Values({vocab, cols}), wpe = t.Values({seq, cols}),
                                y = t.Values({rows, cols});
                     return [=](Stream& s) { EmbeddingForward(s, tokens, positions, wte, wpe, y); };
                   }});
  cases.push_back({"embedding, backward", [=](BenchTensors& t) -> Call {
                     const View tokens = t.Int({rows}, token), positions = t.Int({rows}, position),
                                dwte = t.Values({vocab, cols}), dwpe = t.Values({seq, cols}),
                                dy = t.Values({rows, cols});
                     std::vector<int32_t> ids(rows), by_token(rows);
                     for (int64_t i = 0; i < rows; ++i) ids[i] = token(i);
                     Argsort(ids, by_token);
                     const View order = t.Int({rows}, [&](int64_t i) { return by_token[i]; });
                     return [=](Stream& s) {
                       EmbeddingBackward(s, tokens, order, positions, dy, dwte, dwpe);
                     };
                   }});
  cases.push_back(
      {"head and loss", [=](BenchTensors& t) -> Call {
         const View x = t.Values({rows, cols}), w = t.Values({vocab, cols}),
                    targets = t.Int({rows}, token), weights = t.Constant({rows}, 1),
                    loss = t.Constant({1}, 0), dx = t.Values({rows, cols}),
                    dw = t.Values({vocab, cols});
         const View workspace = t.Workspace(
             HeadLossWorkspaceBytes(rows, vocab, t.dtype(), t.dtype(), t.kernel_type()) +
             HeadLossDwWorkspaceBytes(rows, cols, vocab, t.dtype(), t.dtype(), t.dtype(),
                                      t.kernel_type()));
         return [=](Stream& s) {
           HeadLossForwardBackward(s, x, w, targets, weights, 1e-3f, std::nullopt, loss, dx, dw,
                                   workspace);
         };
       }});
}

// An update of n elements: master and state in these dtypes, with a compute copy where `copy` is
// another one than the master's, and an average or none.
void AddUpdate(std::vector<OpCase>& cases, const std::string& name, int64_t n, DType master,
               DType state, DType copy, bool average) {
  cases.push_back({name, [=](BenchTensors& t) -> Call {
                     const View g = t.Float({n}), p = t.Constant({n}, 0, master),
                                m = t.Constant({n}, 0, state), v = t.Constant({n}, 0, state),
                                one = t.Constant({1}, 1);
                     UpdateExtras extras{.decay = 0.999};
                     if (copy != master) extras.copy = t.Constant({n}, 0, copy);
                     if (average) extras.average = t.Constant({n}, 0);
                     // No rules, and factors that are some numbers: all take the same time.
                     const View rules(nullptr, DType::kUInt8, RuleTableShape(0));
                     const View ones = t.Constant({sizeof(UpdateFactors) / sizeof(float)}, 1);
                     const View factors(ones.data, DType::kUInt8, BlockShape<UpdateFactors>());
                     return
                         [=](Stream& s) { AdamW(s, {}, rules, factors, one, g, p, m, v, extras); };
                   }});
}

// The same with moments in codes, of the whole blocks of n elements.
void AddCodedUpdate(std::vector<OpCase>& cases, const std::string& name, int64_t n, DType master) {
  n = n / kCodeBlock * kCodeBlock;
  cases.push_back({name, [=](BenchTensors& t) -> Call {
                     const View one = t.Constant({1}, 1), g = t.Float({n});
                     const View p = t.Constant({n}, 1, master);
                     const auto moment = [&] {
                       const View codes(t.Constant({n / 4}, 0).data, DType::kUInt8, Shape{n});
                       return CodedMoment{codes, t.Constant({n / kCodeBlock}, 0)};
                     };
                     const CodedMoment m = moment(), v = moment();
                     const View rules(nullptr, DType::kUInt8, RuleTableShape(0));
                     const View ones = t.Constant({sizeof(UpdateFactors) / sizeof(float)}, 1);
                     const View factors(ones.data, DType::kUInt8, BlockShape<UpdateFactors>());
                     return [=](Stream& s) { AdamWCoded(s, {}, rules, factors, one, g, p, m, v); };
                   }});
}

// A shard of n elements as it travels, and what becomes of four ranks' of them.
void AddQuantized(std::vector<OpCase>& cases, const std::string& form_name, QuantizedForm form,
                  int64_t n) {
  struct Tensors {
    Tensors(BenchTensors& t, QuantizedForm form, int64_t n, int64_t ranks) {
      const QuantizedLayout layout = LayOutQuantized({{0, n}}, n, {.form = form, .raw = t.dtype()});
      const int64_t bytes = layout.sizes.bytes;
      table = {layout.sizes, t.Bytes(std::as_bytes(std::span(layout.rows)))};
      // Scales of 1, and some codes.
      packed = {t.Constant({ranks * bytes / 4}, 1).data, DType::kUInt8, {ranks, bytes}};
    }

    QuantizedTable table;
    View packed;
  };
  cases.push_back({"quantize, " + form_name, [=](BenchTensors& t) -> Call {
                     const Tensors own(t, form, n, 1);
                     const View x = t.Values({n});
                     return [=](Stream& s) { Quantize(s, x, own.table, own.packed); };
                   }});
  cases.push_back({"dequantize, " + form_name, [=](BenchTensors& t) -> Call {
                     const Tensors own(t, form, n, 1);
                     const View y = t.Values({n});
                     return [=](Stream& s) { Dequantize(s, own.packed, own.table, y); };
                   }});
  cases.push_back({"dequantize and sum, " + form_name, [=](BenchTensors& t) -> Call {
                     const Tensors own(t, form, n, 4);
                     const View y = t.Float({n});
                     return [=](Stream& s) { DequantizeSum(s, own.packed, own.table, y); };
                   }});
}

// The optimizer's ops, for the parameters of a block.
void AddFlat(std::vector<OpCase>& cases, int64_t rows, int64_t hidden, int64_t n) {
  constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16;
  AddUpdate(cases, "adamw", n, kF32, kF32, kF32, false);
  AddUpdate(cases, "adamw, average", n, kF32, kF32, kF32, true);
  AddUpdate(cases, "adamw, bf16 copy", n, kF32, kF32, kBF16, false);
  AddUpdate(cases, "adamw, bf16 copy, average", n, kF32, kF32, kBF16, true);
  AddUpdate(cases, "adamw, bf16 state, bf16 copy", n, kF32, kBF16, kBF16, false);
  AddUpdate(cases, "adamw, all bf16", n, kBF16, kBF16, kBF16, false);
  AddUpdate(cases, "adamw, all bf16, average", n, kBF16, kBF16, kBF16, true);
  AddCodedUpdate(cases, "adamw, 8bit state", n, kF32);
  AddQuantized(cases, "int8", QuantizedForm::kInt8, n);
  AddQuantized(cases, "int4", QuantizedForm::kInt4, n);
  cases.push_back({"sum_of_squares", [=](BenchTensors& t) -> Call {
                     const View g = t.Float({n}), out = t.Constant({1}, 0);
                     const View workspace =
                         t.Workspace(SumOfSquaresWorkspaceBytes(t.kernel_type()));
                     return [=](Stream& s) { SumOfSquares(s, g, out, workspace); };
                   }});
  cases.push_back({"fill", [=](BenchTensors& t) -> Call {
                     const View y = t.Values({n});
                     return [=](Stream& s) { Fill(s, 0, y); };
                   }});
  cases.push_back({"copy", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({n}), y = t.Values({n});
                     return [=](Stream& s) { Copy(s, x, y); };
                   }});
  cases.push_back({"accumulate", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, hidden}), y = t.Values({rows, hidden});
                     return [=](Stream& s) { Accumulate(s, x, y); };
                   }});
  cases.push_back({"add", [=](BenchTensors& t) -> Call {
                     const View a = t.Values({rows, hidden}), b = t.Values({rows, hidden}),
                                y = t.Values({rows, hidden});
                     return [=](Stream& s) { Add(s, a, b, y); };
                   }});
}

}  // namespace

std::vector<OpCase> OpCases(const OpShapes& shapes, AttentionBackend attention,
                            const ConvolutionBackend& convolution) {
  if (shapes.heads < 1 || shapes.hidden % shapes.heads != 0 ||
      shapes.hidden / shapes.heads % 2 != 0) {
    throw std::invalid_argument("[bench ops] hidden is " + std::to_string(shapes.hidden) +
                                ", want an even number for each of " +
                                std::to_string(shapes.heads) + " heads");
  }
  const int64_t rows = shapes.batch * shapes.seq, hidden = shapes.hidden,
                inner = shapes.intermediate;
  std::vector<OpCase> cases;
  AddLinear(cases, "linear qkv", rows, hidden, 3 * hidden);
  AddLinear(cases, "linear proj", rows, hidden, hidden);
  AddLinear(cases, "linear up", rows, hidden, inner);
  AddLinear(cases, "linear down", rows, inner, hidden);
  AddFused(cases, rows, hidden, inner);
  AddAttention(cases, shapes, attention);
  AddMathAttention(cases, shapes, /*mixes=*/false);
  if (shapes.heads <= kMaxMixedHeads) AddMathAttention(cases, shapes, /*mixes=*/true);
  AddNorms(cases, rows, hidden);
  AddActivations(cases, rows, inner);
  AddExperts(cases, shapes);
  AddVectors(cases, rows, hidden / shapes.heads, convolution);
  AddClassLosses(cases, rows, hidden);
  AddEnds(cases, shapes);
  AddFlat(cases, rows, hidden, 4 * hidden * hidden + 2 * hidden * inner);
  return cases;
}

}  // namespace fsdp
