#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/gelu_element.h"
#include "trainer/ops/cuda/pieces_ahead.h"
#include "trainer/ops/element_backends.h"
#include "trainer/ops/expert_backends.h"

namespace fsdp {
namespace {

// 1 / (1 + exp(-g)). A NaN passes through.
__device__ inline float Sigmoid(float g) {
  return __fdividef(1.0f, 1.0f + exp2f(-1.4426950408889634f * g));
}

// The gradients of g and of the value u. Products start with f(g) or its slope, which are 0 where g
// is far below zero.
struct Gradients {
  float gate, up;
};

struct Silu {
  __device__ static float Of(float g, float u) { return g * Sigmoid(g) * u; }
  // The slope is s (1 + g (1 - s)).
  __device__ static Gradients Backward(float g, float u, float dy) {
    const float s = Sigmoid(g), d = dy * s;
    return {d * u * (1.0f + __fmaf_rn(-g, s, g)), d * g};
  }
};

// As cuda/gelu_element.h has it, in a third of the instructions: exp(-2u) may be infinite.
struct Gelu {
  // s, and its slope 2 s (1 - s) u'(g). Beyond |g| = 16 s is 0 or 1. A NaN passes through.
  __device__ static GeluSigmoid At(float g) {
    constexpr float kExponent = -2.302208198f;  // -2 sqrt(2 / pi) log2(e).
    constexpr float kSlope = 1.595769122f;      // 2 sqrt(2 / pi).
    constexpr float kCubic = 0.044715f;
    float v = g < -16.0f ? -16.0f : g;
    v = v > 16.0f ? 16.0f : v;
    const float square = v * v;
    const float e = exp2f(kExponent * v * __fmaf_rn(kCubic, square, 1.0f));
    const float s = __fdividef(1.0f, 1.0f + e);
    return {s, __fmaf_rn(-s, s, s) * __fmaf_rn(3.0f * kCubic * kSlope, square, kSlope)};
  }
  __device__ static float Of(float g, float u) { return g * At(g).s * u; }
  __device__ static Gradients Backward(float g, float u, float dy) {
    const GeluSigmoid f = At(g);
    return {dy * __fmaf_rn(g, f.slope, f.s) * u, g * f.s * dy};
  }
};

template <typename Gate, typename T, int n>
__device__ inline void Forward(const Elements<T, n>& gate, const Elements<T, n>& up,
                               Elements<T, n>& y) {
  float values[n];
#pragma unroll
  for (int j = 0; j < n; ++j) values[j] = Gate::Of(gate[j], up[j]);
  y.Set(values);
}

template <typename Gate, typename T, int n>
__device__ inline void Backward(const Elements<T, n>& gate, const Elements<T, n>& up,
                                const Elements<T, n>& dy, Elements<T, n>& dgate,
                                Elements<T, n>& dup) {
  float gates[n], ups[n];
#pragma unroll
  for (int j = 0; j < n; ++j) {
    const Gradients d = Gate::Backward(gate[j], up[j], dy[j]);
    gates[j] = d.gate;
    ups[j] = d.up;
  }
  dgate.Set(gates);
  dup.Set(ups);
}

template <typename Gate, typename T>
__global__ void GatedForwardRows(const T* x, int64_t rows, int64_t inner, T* y) {
  constexpr int kPiece = kPack<T>;
  ForEachPiece(rows, CeilDiv(inner, kPiece), [&](int64_t row, int64_t piece) {
    const int64_t first = piece * kPiece, count = inner - first;
    const T* const from = x + row * 2 * inner + first;
    Elements<T, kPiece> gate, up, out;
    gate.Read(from, count, false);
    up.Read(from + inner, count, false);
    Forward<Gate>(gate, up, out);
    out.Write(y + row * inner + first, count, false);
  });
}

// The same where rows are made of packs, `pieces` of them.
template <typename Gate, typename T>
__global__ void GatedForwardPacks(const T* x, int rows, int pieces, T* y) {
  constexpr int kPiece = kPack<T>;
  using Piece = Elements<T, kPiece>;
  const PieceOfRows at(rows, pieces);
  Piece gate[kAhead], up[kAhead];
  const auto read = [&](int row, int slot) {
    const int from = row * 2 * pieces + at.piece;
    gate[slot].ReadPack(x, from);
    up[slot].ReadPack(x, from + pieces);
  };
  ForEachAhead(at.begin, at.end, at.step, read, [&](int row, int slot) {
    Piece out;
    Forward<Gate>(gate[slot], up[slot], out);
    out.WritePack(y, row * pieces + at.piece);
  });
}

// dx may be x: a thread reads its pieces of a row before it writes them.
template <typename Gate, typename T>
__global__ void GatedBackwardRows(const T* x, const T* dy, int64_t rows, int64_t inner, T* dx) {
  constexpr int kPiece = kPack<T>;
  ForEachPiece(rows, CeilDiv(inner, kPiece), [&](int64_t row, int64_t piece) {
    const int64_t first = piece * kPiece, count = inner - first;
    const int64_t at = row * 2 * inner + first;
    Elements<T, kPiece> gate, up, d, dgate, dup;
    gate.Read(x + at, count, false);
    up.Read(x + at + inner, count, false);
    d.Read(dy + row * inner + first, count, false);
    Backward<Gate>(gate, up, d, dgate, dup);
    dgate.Write(dx + at, count, false);
    dup.Write(dx + at + inner, count, false);
  });
}

template <typename Gate, typename T>
__global__ void GatedBackwardPacks(const T* x, const T* dy, int rows, int pieces, T* dx) {
  constexpr int kPiece = kPack<T>;
  using Piece = Elements<T, kPiece>;
  const PieceOfRows at(rows, pieces);
  Piece gate[kAhead], up[kAhead], d[kAhead];
  const auto read = [&](int row, int slot) {
    const int from = row * 2 * pieces + at.piece;
    gate[slot].ReadPack(x, from);
    up[slot].ReadPack(x, from + pieces);
    d[slot].ReadPack(dy, row * pieces + at.piece);
  };
  ForEachAhead(at.begin, at.end, at.step, read, [&](int row, int slot) {
    const int to = row * 2 * pieces + at.piece;
    Piece dgate, dup;
    Backward<Gate>(gate[slot], up[slot], d[slot], dgate, dup);
    dgate.WritePack(dx, to);
    dup.WritePack(dx, to + pieces);
  });
}

// A warp a row, of those that belong to an expert: `last`, where not null, has their number.
constexpr int kRowWarps = 8;

template <typename T, typename Body>
__device__ inline void ForEachPieceOfWarp(int64_t inner, const Body& body) {
  constexpr int kPiece = kPack<T>;
  const int64_t lane = threadIdx.x % kWarp;
  for (int64_t first = lane * kPiece; first < inner; first += kWarp * kPiece) {
    body(first, inner - first);
  }
}
__device__ inline int64_t RowOfWarp() {
  return int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
}

// Rows [*first, *last); without pointers all.
struct RowEnds {
  const int32_t *first, *last;
  int64_t rows;

  __device__ bool Hold(int64_t row) const {
    return first == nullptr ? row < rows : row >= *first && row < *last;
  }
};

template <typename T>
__global__ void WeightedForward(const T* x, const float* weights, RowEnds ends, int64_t inner,
                                bool packs, T* y) {
  constexpr int kPiece = kPack<T>;
  const int64_t row = RowOfWarp();
  if (!ends.Hold(row)) return;
  const float weight = weights[row];
  ForEachPieceOfWarp<T>(inner, [&](int64_t first, int64_t count) {
    Elements<T, kPiece> gate, up, out;
    gate.Read(x + row * 2 * inner + first, count, packs);
    up.Read(x + row * 2 * inner + inner + first, count, packs);
    float values[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; ++j) values[j] = weight * Silu::Of(gate[j], up[j]);
    out.Set(values);
    out.Write(y + row * inner + first, count, packs);
  });
}

// dx may be x.
template <typename T>
__global__ void WeightedBackward(const T* x, const float* weights, RowEnds ends, const T* dy,
                                 int64_t inner, bool packs, T* dx, float* dweights) {
  constexpr int kPiece = kPack<T>;
  const int64_t row = RowOfWarp();
  if (!ends.Hold(row)) return;
  const float weight = weights[row];
  float sum = 0;
  ForEachPieceOfWarp<T>(inner, [&](int64_t first, int64_t count) {
    const int64_t at = row * 2 * inner + first;
    Elements<T, kPiece> gate, up, d, dgate, dup;
    gate.Read(x + at, count, packs);
    up.Read(x + at + inner, count, packs);
    d.Read(dy + row * inner + first, count, packs);
    float gates[kPiece], ups[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      const Gradients of = Silu::Backward(gate[j], up[j], weight * d[j]);
      sum += d[j] * Silu::Of(gate[j], up[j]);
      gates[j] = of.gate;
      ups[j] = of.up;
    }
    dgate.Set(gates);
    dup.Set(ups);
    dgate.Write(dx + at, count, packs);
    dup.Write(dx + at + inner, count, packs);
  });
  sum = WarpSum(sum);
  if (threadIdx.x % kWarp == 0) dweights[row] = sum;
}

RowEnds EndsOf(const std::optional<ConstView>& offsets, int64_t rows) {
  if (!offsets) return {nullptr, nullptr, rows};
  const int32_t* const first = offsets->As<int32_t>();
  return {first, first + offsets->NumElements() - 1, rows};
}

dim3 GridOfWarps(const ConstView& y) {
  return dim3(static_cast<unsigned>(y.NumElements() == 0 ? 0 : CeilDiv(y.shape[0], kRowWarps)));
}

template <typename Gate>
void LaunchForward(CudaStreamHandle stream, const ConstView& x, const View& y) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = y.shape[0], inner = y.shape[1], pieces = CeilDiv(inner, kPack<T>);
    if (InPacks(x.As<T>(), inner) && InPacks(y.As<T>(), inner) && FitsInt(rows, 2 * pieces)) {
      const RowGrid on = GridOfPieces(rows, pieces);
      Launch<GatedForwardPacks<Gate, T>>(stream, on.grid, on.block, 0, x.As<T>(), rows, pieces,
                                         y.As<T>());
    } else {
      const RowGrid on = GridOfRows(rows, pieces);
      Launch<GatedForwardRows<Gate, T>>(stream, on.grid, on.block, 0, x.As<T>(), rows, inner,
                                        y.As<T>());
    }
  });
}

template <typename Gate>
void LaunchBackward(CudaStreamHandle stream, const ConstView& x, const ConstView& dy,
                    const View& dx) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = dy.shape[0], inner = dy.shape[1], pieces = CeilDiv(inner, kPack<T>);
    if (InPacks(x.As<T>(), inner) && InPacks(dy.As<T>(), inner) && InPacks(dx.As<T>(), inner) &&
        FitsInt(rows, 2 * pieces)) {
      const RowGrid on = GridOfPieces(rows, pieces);
      Launch<GatedBackwardPacks<Gate, T>>(stream, on.grid, on.block, 0, x.As<T>(), dy.As<T>(), rows,
                                          pieces, dx.As<T>());
    } else {
      const RowGrid on = GridOfRows(rows, pieces);
      Launch<GatedBackwardRows<Gate, T>>(stream, on.grid, on.block, 0, x.As<T>(), dy.As<T>(), rows,
                                         inner, dx.As<T>());
    }
  });
}

}  // namespace

void SwigluForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y) {
  LaunchForward<Silu>(stream, x, y);
}
void SwigluBackwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& dy,
                        const View& dx) {
  LaunchBackward<Silu>(stream, x, dy, dx);
}

void GatedGeluForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y) {
  LaunchForward<Gelu>(stream, x, y);
}
void GatedGeluBackwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& dy,
                           const View& dx) {
  LaunchBackward<Gelu>(stream, x, dy, dx);
}

void WeightedSwigluForwardCuda(CudaStreamHandle stream, const ConstView& x,
                               const ConstView& weights, const std::optional<ConstView>& offsets,
                               const View& y) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = y.shape[0], inner = y.shape[1];
    const bool packs = InPacks(x.As<T>(), inner) && InPacks(y.As<T>(), inner);
    Launch<WeightedForward<T>>(stream, GridOfWarps(y), dim3(kRowWarps * kWarp), 0, x.As<T>(),
                               weights.As<float>(), EndsOf(offsets, rows), inner, packs, y.As<T>());
  });
}

void WeightedSwigluBackwardCuda(CudaStreamHandle stream, const ConstView& x,
                                const ConstView& weights, const std::optional<ConstView>& offsets,
                                const ConstView& dy, const View& dx, const View& dweights) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = dy.shape[0], inner = dy.shape[1];
    const bool packs =
        InPacks(x.As<T>(), inner) && InPacks(dy.As<T>(), inner) && InPacks(dx.As<T>(), inner);
    Launch<WeightedBackward<T>>(stream, GridOfWarps(dy), dim3(kRowWarps * kWarp), 0, x.As<T>(),
                                weights.As<float>(), EndsOf(offsets, rows), dy.As<T>(), inner,
                                packs, dx.As<T>(), dweights.As<float>());
  });
}

}  // namespace fsdp
