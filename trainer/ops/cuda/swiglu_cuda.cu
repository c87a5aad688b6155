#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/swiglu_cuda.h"

namespace fsdp {
namespace {

struct Sigmoid {
  float s, rest;  // 1 / (1 + exp(-g)), and what is missing to 1.
};

// A NaN passes through.
__device__ inline Sigmoid SigmoidAt(float g) {
  const float e = expf(-fabsf(g)), r = 1.0f / (1.0f + e);
  return {g < 0.0f ? e * r : r, g < 0.0f ? r : e * r};
}

template <typename T>
__global__ void SwigluForwardRows(const T* x, int64_t rows, int64_t inner, bool packs, T* y) {
  constexpr int kPiece = kPack<T>;
  ForEachPiece(rows, CeilDiv(inner, kPiece), [&](int64_t row, int64_t piece) {
    const int64_t first = piece * kPiece, count = inner - first;
    const T* const from = x + row * 2 * inner + first;
    Elements<T, kPiece> gate, up, out;
    gate.Read(from, count, packs);
    up.Read(from + inner, count, packs);
    float values[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; ++j) values[j] = gate[j] * SigmoidAt(gate[j]).s * up[j];
    out.Set(values);
    out.Write(y + row * inner + first, count, packs);
  });
}

// dx may be x: a thread reads its pieces before it writes them.
template <typename T>
__global__ void SwigluBackwardRows(const T* x, const T* dy, int64_t rows, int64_t inner, bool packs,
                                   T* dx) {
  constexpr int kPiece = kPack<T>;
  ForEachPiece(rows, CeilDiv(inner, kPiece), [&](int64_t row, int64_t piece) {
    const int64_t first = piece * kPiece, count = inner - first;
    const int64_t at = row * 2 * inner + first;
    Elements<T, kPiece> gate, up, d, out;
    gate.Read(x + at, count, packs);
    up.Read(x + at + inner, count, packs);
    d.Read(dy + row * inner + first, count, packs);
    float dgate[kPiece], dup[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      const float g = gate[j];
      const Sigmoid f = SigmoidAt(g);
      dgate[j] = d[j] * up[j] * f.s * __fmaf_rn(g, f.rest, 1.0f);
      dup[j] = d[j] * g * f.s;
    }
    out.Set(dgate);
    out.Write(dx + at, count, packs);
    out.Set(dup);
    out.Write(dx + at + inner, count, packs);
  });
}

}  // namespace

void SwigluForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = y.shape[0], inner = y.shape[1];
    const RowGrid on = GridOfRows(rows, CeilDiv(inner, kPack<T>));
    const bool packs = InPacks(x.As<T>(), inner) && InPacks(y.As<T>(), inner);
    Launch<SwigluForwardRows<T>>(stream, on.grid, on.block, 0, x.As<T>(), rows, inner, packs,
                                 y.As<T>());
  });
}

void SwigluBackwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& dy,
                        const View& dx) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = dy.shape[0], inner = dy.shape[1];
    const RowGrid on = GridOfRows(rows, CeilDiv(inner, kPack<T>));
    const bool packs =
        InPacks(x.As<T>(), inner) && InPacks(dy.As<T>(), inner) && InPacks(dx.As<T>(), inner);
    Launch<SwigluBackwardRows<T>>(stream, on.grid, on.block, 0, x.As<T>(), dy.As<T>(), rows, inner,
                                  packs, dx.As<T>());
  });
}

}  // namespace fsdp
