#include "trainer/ops/swiglu.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/sigmoid_element.h"
#include "trainer/ops/element_backends.h"
#include "trainer/ops/expert_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// The gradients of g and of the value u.
struct Gradients {
  float gate, up;
};

struct Silu {
  FSDP_ALWAYS_INLINE static float Of(float g, float u) { return g * SigmoidAt(g).s * u; }
  FSDP_ALWAYS_INLINE static Gradients Backward(float g, float u, float dy) {
    const Sigmoid f = SigmoidAt(g);
    return {dy * u * f.s * (1.0f + g * f.rest), dy * g * f.s};
  }
};

// The slope and f(g) first: they vanish where g is beyond all bounds.
struct Gelu {
  FSDP_ALWAYS_INLINE static float Of(float g, float u) { return g * GeluSigmoidAt(g).s * u; }
  FSDP_ALWAYS_INLINE static Gradients Backward(float g, float u, float dy) {
    const GeluSigmoid f = GeluSigmoidAt(g);
    return {dy * __builtin_fmaf(g, f.slope, f.s) * u, g * f.s * dy};
  }
};

template <typename Gate>
void Forward(const float* gate, const float* up, int64_t n, float* out) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) out[j] = Gate::Of(gate[j], up[j]);
}

// dgate and dup may be gate and up.
template <typename Gate>
void Backward(const float* gate, const float* up, const float* dy, int64_t n, float* dgate,
              float* dup) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const Gradients d = Gate::Backward(gate[j], up[j], dy[j]);
    dgate[j] = d.gate;
    dup[j] = d.up;
  }
}

template <typename Gate>
void ForwardRows(ThreadPool& pool, const ConstView& x, const View& y) {
  const int64_t rows = y.shape[0], inner = y.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    FloatPiece gate, up, out;
    for (int64_t i = begin; i < end; ++i) {
      ForEachPiece(x.dtype, 0, inner, [&](int64_t j, int64_t n) {
        const int64_t at = 2 * i * inner + j;
        float* to = FloatsToWrite(y, i * inner + j, out);
        Forward<Gate>(ReadFloats(x, at, n, gate), ReadFloats(x, at + inner, n, up), n, to);
        WriteFloats(to, n, y, i * inner + j);
      });
    }
  });
}

template <typename Gate>
void BackwardRows(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx) {
  const int64_t rows = dy.shape[0], inner = dy.shape[1];
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    FloatPiece gate, up, d, dgate, dup;
    for (int64_t i = begin; i < end; ++i) {
      ForEachPiece(x.dtype, 0, inner, [&](int64_t j, int64_t n) {
        const int64_t at = 2 * i * inner + j;
        float *to_gate = FloatsToWrite(dx, at, dgate), *to_up = FloatsToWrite(dx, at + inner, dup);
        Backward<Gate>(ReadFloats(x, at, n, gate), ReadFloats(x, at + inner, n, up),
                       ReadFloats(dy, i * inner + j, n, d), n, to_gate, to_up);
        WriteFloats(to_gate, n, dx, at);
        WriteFloats(to_up, n, dx, at + inner);
      });
    }
  });
}

void SwigluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  ForwardRows<Silu>(pool, x, y);
}
void SwigluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy, const View& dx) {
  BackwardRows<Silu>(pool, x, dy, dx);
}

void GatedGeluForwardCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  ForwardRows<Gelu>(pool, x, y);
}
void GatedGeluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& dy,
                          const View& dx) {
  BackwardRows<Gelu>(pool, x, dy, dx);
}

// Rows that belong to an expert.
// Calls body(begin, end) for the rows between the offsets' first and last; all where there are
// none.
template <typename Body>
void ForEachRow(ThreadPool& pool, const std::optional<ConstView>& offsets, int64_t rows,
                const Body& body) {
  const int32_t* const of = offsets ? offsets->As<int32_t>() : nullptr;
  const int64_t first = of ? of[0] : 0, last = of ? of[offsets->NumElements() - 1] : rows;
  pool.ParallelFor(last - first, 1,
                   [&](int64_t begin, int64_t end) { body(first + begin, first + end); });
}

void WeightedSwigluForwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& weights,
                              const std::optional<ConstView>& offsets, const View& y) {
  const int64_t inner = y.shape[1];
  ForEachRow(pool, offsets, y.shape[0], [&](int64_t begin, int64_t end) {
    FloatPiece gate, up, out;
    for (int64_t i = begin; i < end; ++i) {
      const float weight = weights.As<float>()[i];
      ForEachPiece(x.dtype, 0, inner, [&](int64_t j, int64_t n) {
        const int64_t at = 2 * i * inner + j;
        const float *g = ReadFloats(x, at, n, gate), *u = ReadFloats(x, at + inner, n, up);
        float* const to = FloatsToWrite(y, i * inner + j, out);
#pragma omp simd
        for (int64_t l = 0; l < n; ++l) to[l] = weight * Silu::Of(g[l], u[l]);
        WriteFloats(to, n, y, i * inner + j);
      });
    }
  });
}

// The gradients of a piece's gates and values. Returns sum_j dy[j] silu(gate[j]) up[j], in lanes
// that no processor's vectors change.
double WeightedBackward(const float* gate, const float* up, const float* dy, float weight,
                        int64_t n, float* dgate, float* dup) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  for (int64_t first = 0; first < n; first += kLanes) {
    const int64_t count = std::min(kLanes, n - first);
#pragma omp simd
    for (int64_t l = 0; l < count; ++l) {
      const int64_t j = first + l;
      const float g = gate[j], u = up[j], d = dy[j];
      const Gradients of = Silu::Backward(g, u, weight * d);
      lanes[l] += d * Silu::Of(g, u);
      dgate[j] = of.gate;
      dup[j] = of.up;
    }
  }
  double sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

void WeightedSwigluBackwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& weights,
                               const std::optional<ConstView>& offsets, const ConstView& dy,
                               const View& dx, const View& dweights) {
  const int64_t inner = dy.shape[1];
  ForEachRow(pool, offsets, dy.shape[0], [&](int64_t begin, int64_t end) {
    FloatPiece gate, up, d, dgate, dup;
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < inner; j += kFloatPiece) {
        const int64_t n = std::min(kFloatPiece, inner - j), at = 2 * i * inner + j;
        float *to_gate = FloatsToWrite(dx, at, dgate), *to_up = FloatsToWrite(dx, at + inner, dup);
        sum += WeightedBackward(ReadFloats(x, at, n, gate), ReadFloats(x, at + inner, n, up),
                                ReadFloats(dy, i * inner + j, n, d), weights.As<float>()[i], n,
                                to_gate, to_up);
        WriteFloats(to_gate, n, dx, at);
        WriteFloats(to_up, n, dx, at + inner);
      }
      dweights.As<float>()[i] = static_cast<float>(sum);
    }
  });
}

void CheckOperands(const Arguments& args, const ConstView& x, const char* y_name,
                   const ConstView& y) {
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank(y_name, y, x.dtype, 2);
  args.Check("x", x, x.dtype, {y.shape[0], 2 * y.shape[1]});
}

// `flops`: an element of y.
void Forward(const char* op, double flops, Stream& stream, const ConstView& x, const View& y,
             DeviceKernels kernels) {
  const Arguments args(op);
  CheckOperands(args, x, "y", y);
  args.CheckDisjoint("y", y, "x", x);
  const Cost cost{.flops = flops * static_cast<double>(y.NumElements()),
                  .bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({op, {x}, {y}, {cost}, std::move(kernels)});
}

void Backward(const char* op, double flops, Stream& stream, const ConstView& x, const ConstView& dy,
              const View& dx, DeviceKernels kernels) {
  const Arguments args(op);
  CheckOperands(args, x, "dy", dy);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckSameOrDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "dy", dy);
  const Cost cost{.flops = flops * static_cast<double>(dy.NumElements()),
                  .bytes_read = static_cast<double>(x.bytes() + dy.bytes()),
                  .bytes_written = static_cast<double>(dx.bytes())};
  stream.Enqueue({op, {x, dy}, {dx}, {cost}, std::move(kernels)});
}

void CheckWeights(const Arguments& args, const ConstView& weights,
                  const std::optional<ConstView>& offsets, int64_t rows) {
  args.Check("weights", weights, DType::kFloat32, {rows});
  if (!offsets) return;
  args.CheckRank("offsets", *offsets, DType::kInt32, 1);
  args.Require(offsets->NumElements() > 0, "offsets is empty");
}

// `flops`: an element of y's or its gradient's, `of`.
void EnqueueWeighted(const char* op, double flops, Stream& stream,
                     const std::optional<ConstView>& offsets, std::vector<Range> reads,
                     std::vector<Range> writes, const ConstView& of, int64_t parts,
                     DeviceKernels kernels) {
  if (offsets) reads.emplace_back(*offsets);
  const double share = 1 / static_cast<double>(parts);
  Cost cost{.flops = share * flops * static_cast<double>(of.NumElements())};
  for (const Range& read : reads) cost.bytes_read += share * static_cast<double>(read.bytes);
  for (const Range& write : writes) cost.bytes_written += share * static_cast<double>(write.bytes);
  stream.Enqueue({op,
                  std::move(reads),
                  std::move(writes),
                  {{cost, {.launches = of.NumElements() > 0}}},
                  std::move(kernels)});
}

}  // namespace

void SwigluForward(Stream& stream, ConstView x, View y) {
  Forward("swiglu_forward", 20, stream, x, y,
          {.cpu = OnCpu(SwigluForwardCpu, x, y), .cuda = OnCuda(SwigluForwardCuda, x, y)});
}

void SwigluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  Backward(
      "swiglu_backward", 26, stream, x, dy, dx,
      {.cpu = OnCpu(SwigluBackwardCpu, x, dy, dx), .cuda = OnCuda(SwigluBackwardCuda, x, dy, dx)});
}

void GatedGeluForward(Stream& stream, ConstView x, View y) {
  Forward("gated_gelu_forward", 26, stream, x, y,
          {.cpu = OnCpu(GatedGeluForwardCpu, x, y), .cuda = OnCuda(GatedGeluForwardCuda, x, y)});
}

void GatedGeluBackward(Stream& stream, ConstView x, ConstView dy, View dx) {
  Backward("gated_gelu_backward", 39, stream, x, dy, dx,
           {.cpu = OnCpu(GatedGeluBackwardCpu, x, dy, dx),
            .cuda = OnCuda(GatedGeluBackwardCuda, x, dy, dx)});
}

void WeightedSwigluForward(Stream& stream, ConstView x, ConstView weights,
                           std::optional<ConstView> offsets, View y, int64_t parts) {
  constexpr const char* kOp = "weighted_swiglu_forward";
  const Arguments args(kOp);
  CheckOperands(args, x, "y", y);
  CheckWeights(args, weights, offsets, y.shape[0]);
  args.CheckDisjoint("y", y, "x", x);
  args.CheckDisjoint("y", y, {{"weights", weights}, {"offsets", offsets}});
  EnqueueWeighted(kOp, 21, stream, offsets, {x, weights}, {y}, y, parts,
                  {.cpu = OnCpu(WeightedSwigluForwardCpu, x, weights, offsets, y),
                   .cuda = OnCuda(WeightedSwigluForwardCuda, x, weights, offsets, y)});
}

void WeightedSwigluBackward(Stream& stream, ConstView x, ConstView weights,
                            std::optional<ConstView> offsets, ConstView dy, View dx, View dweights,
                            int64_t parts) {
  constexpr const char* kOp = "weighted_swiglu_backward";
  const Arguments args(kOp);
  CheckOperands(args, x, "dy", dy);
  CheckWeights(args, weights, offsets, dy.shape[0]);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckSameOrDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "dy", dy);
  args.Check("dweights", dweights, DType::kFloat32, weights.shape);
  args.CheckDisjoint("dweights", dweights, "x", x);
  args.CheckDisjoint("dweights", dweights, "dy", dy);
  args.CheckDisjoint("dweights", dweights, "dx", dx);
  args.CheckDisjoint("dx", dx, {{"weights", weights}, {"offsets", offsets}});
  args.CheckDisjoint("dweights", dweights, {{"weights", weights}, {"offsets", offsets}});
  EnqueueWeighted(
      kOp, 29, stream, offsets, {x, weights, dy}, {dx, dweights}, dy, parts,
      {.cpu = OnCpu(WeightedSwigluBackwardCpu, x, weights, offsets, dy, dx, dweights),
       .cuda = OnCuda(WeightedSwigluBackwardCuda, x, weights, offsets, dy, dx, dweights)});
}

}  // namespace fsdp
