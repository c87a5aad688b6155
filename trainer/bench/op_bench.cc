#include "trainer/bench/op_bench.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/core/argsort.h"
#include "trainer/ops/adamw.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/cpu/gemm.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/embedding.h"
#include "trainer/ops/gelu.h"
#include "trainer/ops/head_loss.h"
#include "trainer/ops/layer_norm.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/rms_norm.h"
#include "trainer/ops/rope.h"
#include "trainer/ops/swiglu.h"
#include "trainer/runtime/device_factory.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

constexpr int64_t kLimitBytes = int64_t{256} << 20;  // Of each of the copy's two tensors.

// Tensors of one op on a device; on the simulated one they have addresses and no contents.
class Tensors {
 public:
  explicit Tensors(Device& device) : device_(device) {}

  DeviceType kernel_type() const { return device_.kernel_type(); }

  // Contents that are no special case of any op. Small, so that the softmax of the head is not of a
  // few tokens alone.
  View Float(const Shape& shape) {
    const View view = New(DType::kFloat32, shape);
    if (device_.type() != DeviceType::kSim) {
      float* const data = device_.OnHost(view)->As<float>();
      for (int64_t i = 0; i < view.NumElements(); ++i) {
        data[i] = 1e-4f * static_cast<float>(i % 1021 - 510);
      }
    }
    return view;
  }

  View Zeros(DType dtype, const Shape& shape) {
    const View view = New(dtype, shape);
    if (device_.type() != DeviceType::kSim) {
      std::fill_n(device_.OnHost(view)->data, view.bytes(), std::byte{0});
    }
    return view;
  }

  View Workspace(int64_t bytes) {
    return bytes > 0 ? New(DType::kUInt8, {bytes}) : View(nullptr, DType::kUInt8, {0});
  }

  View Constant(const Shape& shape, float value) {
    const View view = New(DType::kFloat32, shape);
    if (device_.type() != DeviceType::kSim) {
      std::fill_n(device_.OnHost(view)->As<float>(), view.NumElements(), value);
    }
    return view;
  }

  View Int(const Shape& shape, const std::function<int32_t(int64_t)>& value) {
    const View view = New(DType::kInt32, shape);
    if (device_.type() != DeviceType::kSim) {
      int32_t* const data = device_.OnHost(view)->As<int32_t>();
      for (int64_t i = 0; i < view.NumElements(); ++i) data[i] = value(i);
    }
    return view;
  }

 private:
  View New(DType dtype, const Shape& shape) {
    buffers_.push_back(device_.Allocate(shape.NumElements() * SizeOf(dtype)));
    return buffers_.back().As(dtype, shape);
  }

  Device& device_;
  std::vector<Buffer> buffers_;
};

using Call = std::function<void(Stream& stream)>;

struct OpCase {
  std::string name;
  std::function<Call(Tensors&)> make;  // The tensors outlive the calls.
};

// A layer as GPT-2 has it, with a bias.
void AddLinear(std::vector<OpCase>& cases, const std::string& name, int64_t rows, int64_t in,
               int64_t out) {
  cases.push_back({name + ", forward", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, in}), w = t.Float({in, out}), b = t.Float({out}),
                                y = t.Float({rows, out});
                     return [=](Stream& s) { LinearForward(s, x, w, WeightLayout::kInOut, b, y); };
                   }});
  cases.push_back(
      {name + ", backward", [=](Tensors& t) -> Call {
         const View x = t.Float({rows, in}), w = t.Float({in, out}), dy = t.Float({rows, out}),
                    dx = t.Float({rows, in}), dw = t.Float({in, out}), db = t.Float({out});
         return [=](Stream& s) { LinearBackward(s, x, w, WeightLayout::kInOut, dy, dx, dw, db); };
       }});
}

void AddAttention(std::vector<OpCase>& cases, const OpShapes& shapes) {
  const int64_t batch = shapes.batch, seq = shapes.seq, heads = shapes.heads;
  const int64_t head_dim = shapes.hidden / heads;
  const Shape qkv_shape{batch, seq, 3 * heads, head_dim}, out_shape{batch, seq, heads, head_dim};
  const Shape lse_shape{batch, heads, seq};
  const AttentionDims dims{batch, seq, heads, heads, head_dim};
  const auto positions = [=](Tensors& t) {
    return t.Int({batch, seq}, [=](int64_t i) { return static_cast<int32_t>(i % seq); });
  };
  const auto part = [=](const View& tensor, int64_t p) { return Heads(tensor, p * heads, heads); };
  cases.push_back(
      {"attention, forward", [=](Tensors& t) -> Call {
         const View qkv = t.Float(qkv_shape), out = t.Float(out_shape), lse = t.Float(lse_shape);
         const AttentionInputs in{part(qkv, 0), part(qkv, 1), part(qkv, 2), positions(t)};
         const View workspace =
             t.Workspace(AttentionForwardWorkspaceBytes(dims, DType::kFloat32, t.kernel_type()));
         return [=](Stream& s) { AttentionForward(s, in, out, lse, workspace); };
       }});
  cases.push_back(
      {"attention, backward", [=](Tensors& t) -> Call {
         const View qkv = t.Float(qkv_shape), dqkv = t.Float(qkv_shape), out = t.Float(out_shape),
                    dout = t.Float(out_shape), lse = t.Float(lse_shape);
         const AttentionInputs in{part(qkv, 0), part(qkv, 1), part(qkv, 2), positions(t)};
         const AttentionGradients gradients{part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)};
         const View workspace =
             t.Workspace(AttentionBackwardWorkspaceBytes(dims, DType::kFloat32, t.kernel_type()));
         return [=](Stream& s) { AttentionBackward(s, in, out, lse, dout, gradients, workspace); };
       }});
  cases.push_back({"rope", [=](Tensors& t) -> Call {
                     const View table = t.Float({seq, 2, head_dim / 2}), qkv = t.Float(qkv_shape),
                                at = positions(t);
                     const Heads queries_and_keys(qkv, 0, 2 * heads);
                     return [=](Stream& s) {
                       Rope(s, table, at, RopeDirection::kForward, queries_and_keys);
                     };
                   }});
}

void AddNorms(std::vector<OpCase>& cases, int64_t rows, int64_t cols) {
  cases.push_back({"layer_norm, forward", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, cols}), w = t.Float({cols}), b = t.Float({cols}),
                                y = t.Float({rows, cols}), mean = t.Float({rows}),
                                rstd = t.Float({rows});
                     return [=](Stream& s) { LayerNormForward(s, x, w, b, 1e-5f, y, mean, rstd); };
                   }});
  cases.push_back(
      {"layer_norm, backward", [=](Tensors& t) -> Call {
         const View x = t.Float({rows, cols}), w = t.Float({cols}), dy = t.Float({rows, cols}),
                    dx = t.Float({rows, cols}), dw = t.Float({cols}), db = t.Float({cols}),
                    mean = t.Float({rows}), rstd = t.Float({rows});
         const View workspace = t.Workspace(
             LayerNormBackwardWorkspaceBytes(rows, cols, DType::kFloat32, t.kernel_type()));
         return [=](Stream& s) {
           LayerNormBackward(s, x, w, mean, rstd, dy, LayerNormDx::kAdd, dx, dw, db, workspace);
         };
       }});
  cases.push_back({"rms_norm, forward", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, cols}), w = t.Float({cols}),
                                y = t.Float({rows, cols}), r = t.Float({rows});
                     return [=](Stream& s) { RmsNormForward(s, x, w, 1e-5f, y, r); };
                   }});
  cases.push_back({"rms_norm, backward", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, cols}), w = t.Float({cols}),
                                dy = t.Float({rows, cols}), dx = t.Float({rows, cols}),
                                dw = t.Float({cols}), r = t.Float({rows});
                     const View workspace = t.Workspace(RmsNormBackwardWorkspaceBytes(
                         rows, cols, DType::kFloat32, t.kernel_type()));
                     return [=](Stream& s) {
                       RmsNormBackward(s, x, w, r, dy, RmsNormDx::kAdd, dx, dw, workspace);
                     };
                   }});
}

void AddActivations(std::vector<OpCase>& cases, int64_t rows, int64_t cols) {
  cases.push_back({"gelu, forward", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, cols}), y = t.Float({rows, cols});
                     return [=](Stream& s) { GeluForward(s, x, y); };
                   }});
  cases.push_back({"gelu, backward", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, cols}), dy = t.Float({rows, cols}),
                                dx = t.Float({rows, cols});
                     return [=](Stream& s) { GeluBackward(s, x, dy, dx); };
                   }});
  cases.push_back({"swiglu, forward", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, 2 * cols}), y = t.Float({rows, cols});
                     return [=](Stream& s) { SwigluForward(s, x, y); };
                   }});
  cases.push_back({"swiglu, backward", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, 2 * cols}), dy = t.Float({rows, cols}),
                                dx = t.Float({rows, 2 * cols});
                     return [=](Stream& s) { SwigluBackward(s, x, dy, dx); };
                   }});
}

void AddEnds(std::vector<OpCase>& cases, const OpShapes& shapes) {
  const int64_t rows = shapes.batch * shapes.seq, cols = shapes.hidden, vocab = shapes.vocab;
  const int64_t seq = shapes.seq;
  const auto token = [=](int64_t i) { return static_cast<int32_t>(i * 7919 % vocab); };
  const auto position = [=](int64_t i) { return static_cast<int32_t>(i % seq); };
  cases.push_back({"embedding, forward", [=](Tensors& t) -> Call {
                     const View tokens = t.Int({rows}, token), positions = t.Int({rows}, position),
                                wte = t.Float({vocab, cols}), wpe = t.Float({seq, cols}),
                                y = t.Float({rows, cols});
                     return [=](Stream& s) { EmbeddingForward(s, tokens, positions, wte, wpe, y); };
                   }});
  cases.push_back({"embedding, backward", [=](Tensors& t) -> Call {
                     const View tokens = t.Int({rows}, token), positions = t.Int({rows}, position),
                                dwte = t.Float({vocab, cols}), dwpe = t.Float({seq, cols}),
                                dy = t.Float({rows, cols});
                     std::vector<int32_t> ids(rows), by_token(rows);
                     for (int64_t i = 0; i < rows; ++i) ids[i] = token(i);
                     Argsort(ids, by_token);
                     const View order = t.Int({rows}, [&](int64_t i) { return by_token[i]; });
                     return [=](Stream& s) {
                       EmbeddingBackward(s, tokens, order, positions, dy, dwte, dwpe);
                     };
                   }});
  cases.push_back({"head and loss", [=](Tensors& t) -> Call {
                     const View x = t.Float({rows, cols}), w = t.Float({vocab, cols}),
                                targets = t.Int({rows}, token), weights = t.Constant({rows}, 1),
                                loss = t.Constant({1}, 0), dx = t.Float({rows, cols}),
                                dw = t.Float({vocab, cols});
                     const View workspace = t.Workspace(HeadLossWorkspaceBytes(
                         rows, vocab, DType::kFloat32, DType::kFloat32, t.kernel_type()));
                     return [=](Stream& s) {
                       HeadLossForwardBackward(s, x, w, targets, weights, 1e-3f, std::nullopt, loss,
                                               dx, dw, workspace);
                     };
                   }});
}

// An update of n elements: master and state in these dtypes, with a compute copy where `copy` is
// another one than the master's, and an average or none.
void AddUpdate(std::vector<OpCase>& cases, const std::string& name, int64_t n, DType master,
               DType state, DType copy, bool average) {
  cases.push_back({name, [=](Tensors& t) -> Call {
                     const View g = t.Float({n}), p = t.Zeros(master, {n}), m = t.Zeros(state, {n}),
                                v = t.Zeros(state, {n}), one = t.Constant({1}, 1);
                     UpdateExtras extras{.decay = 0.999};
                     if (copy != master) extras.copy = t.Zeros(copy, {n});
                     if (average) extras.average = t.Constant({n}, 0);
                     // No rules, and factors that are some numbers: all take the same time.
                     const View rules(nullptr, DType::kUInt8, RuleTableShape(0));
                     const View ones = t.Constant({sizeof(UpdateFactors) / sizeof(float)}, 1);
                     const View factors(ones.data, DType::kUInt8, BlockShape<UpdateFactors>());
                     return
                         [=](Stream& s) { AdamW(s, {}, rules, factors, one, g, p, m, v, extras); };
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
  cases.push_back({"sum_of_squares", [=](Tensors& t) -> Call {
                     const View g = t.Float({n}), out = t.Constant({1}, 0);
                     const View workspace =
                         t.Workspace(SumOfSquaresWorkspaceBytes(t.kernel_type()));
                     return [=](Stream& s) { SumOfSquares(s, g, out, workspace); };
                   }});
  cases.push_back({"fill", [=](Tensors& t) -> Call {
                     const View y = t.Float({n});
                     return [=](Stream& s) { Fill(s, 0, y); };
                   }});
  cases.push_back({"copy", [=](Tensors& t) -> Call {
                     const View x = t.Float({n}), y = t.Float({n});
                     return [=](Stream& s) { Copy(s, x, y); };
                   }});
  cases.push_back({"add", [=](Tensors& t) -> Call {
                     const View a = t.Float({rows, hidden}), b = t.Float({rows, hidden}),
                                y = t.Float({rows, hidden});
                     return [=](Stream& s) { Add(s, a, b, y); };
                   }});
}

std::vector<OpCase> Cases(const OpShapes& shapes) {
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
  AddAttention(cases, shapes);
  AddNorms(cases, rows, hidden);
  AddActivations(cases, rows, inner);
  AddEnds(cases, shapes);
  AddFlat(cases, rows, hidden, 4 * hidden * hidden + 2 * hidden * inner);
  return cases;
}

// The simulated time of a call where a unit of the cost takes a second.
double Simulated(const OpCase& op, const SimModel& model) {
  SimDevice device(model);
  Tensors tensors(device);
  const auto stream = device.CreateStream("bench");
  const Call call = op.make(tensors);
  device.StartTrace();
  call(*stream);
  stream->Synchronize();
  double total = 0;
  for (const Span& span : device.TakeTrace()) total += span.end_s - span.begin_s;
  return total;
}

double FastestCall(const OpBenchOptions& options, const Device& device, Stream& stream,
                   const Call& call) {
  call(stream);  // Touches the memory.
  stream.Synchronize();
  double best = std::numeric_limits<double>::infinity();
  const double begin = device.Now();
  for (int i = 0; i < 3 || device.Now() - begin < options.seconds; ++i) {
    const double start = device.Now();
    call(stream);
    stream.Synchronize();
    best = std::min(best, device.Now() - start);
  }
  return best;
}

std::vector<OpCase> Selected(const OpBenchOptions& options) {
  std::vector<OpCase> selected;
  std::string names;
  for (OpCase& op : Cases(options.shapes)) {
    names += (names.empty() ? "" : "; ") + op.name;
    if (op.name.find(options.only) != std::string::npos) selected.push_back(std::move(op));
  }
  if (selected.empty()) {
    throw std::invalid_argument("[bench ops] no op's name contains `" + options.only +
                                "`; there are: " + names);
  }
  return selected;
}

OpCost CostOf(const OpCase& op) {
  return {.flops = Simulated(op, {.s_per_flop = 1}), .bytes = Simulated(op, {.s_per_byte = 1})};
}

}  // namespace

double OpLimits::Seconds(const OpCost& cost) const {
  return std::max(cost.flops / flops_per_s, cost.bytes / bytes_per_s);
}

std::vector<std::string> BenchedOps(const OpBenchOptions& options) {
  std::vector<std::string> names;
  for (const OpCase& op : Selected(options)) names.push_back(op.name);
  return names;
}

OpCost CostOfOp(const OpShapes& shapes, const std::string& name) {
  for (const OpCase& op : Cases(shapes)) {
    if (op.name == name) return CostOf(op);
  }
  throw std::invalid_argument("[bench ops] there is no op " + name);
}

OpLimits MeasureLimits(const OpBenchOptions& options) {
  const OpShapes& shapes = options.shapes;
  const std::unique_ptr<Device> owner = CreateDevice(DeviceType::kCpu, {.spin = true});
  Device& device = *owner;
  Tensors tensors(device);
  const auto stream = device.CreateStream("bench", options.threads);
  OpLimits limits;
  {
    const int64_t m = shapes.batch * shapes.seq, n = shapes.intermediate, k = shapes.hidden;
    const View a = tensors.Float({m, k}), b = tensors.Float({k, n}), c = tensors.Float({m, n});
    const auto gemm = [=](ThreadPool& pool, const View& a, const View& b, const View& c) {
      Gemm(pool, m, n, k, {a.As<float>(), k}, {b.As<float>(), n}, {c.As<float>(), n});
    };
    const double seconds = FastestCall(options, device, *stream, [&](Stream& s) {
      s.Enqueue({"gemm", {}, {}, {}, {OnCpu(gemm, a, b, c)}});
    });
    limits.flops_per_s = 2.0 * m * n * k / seconds;
  }
  const View from = tensors.Float({kLimitBytes / 4}), to = tensors.Float({kLimitBytes / 4});
  const double seconds =
      FastestCall(options, device, *stream, [&](Stream& s) { Copy(s, from, to); });
  limits.bytes_per_s = 2.0 * kLimitBytes / seconds;
  return limits;
}

std::vector<OpTime> MeasureOps(const OpBenchOptions& options,
                               const std::function<void(const OpTime&)>& measured) {
  std::vector<OpTime> times;
  for (const OpCase& op : Selected(options)) {
    const std::unique_ptr<Device> owner = CreateDevice(DeviceType::kCpu, {.spin = true});
    Device& device = *owner;
    Tensors tensors(device);
    const auto stream = device.CreateStream("bench", options.threads);
    OpTime time{op.name, CostOf(op), 0};
    time.seconds = FastestCall(options, device, *stream, op.make(tensors));
    if (measured) measured(time);
    times.push_back(std::move(time));
  }
  return times;
}

}  // namespace fsdp
