#include <algorithm>

#include "trainer/ops/attention_backends.h"
#include "trainer/ops/cuda/elements.h"

namespace fsdp {
namespace {

struct Frequencies {
  double at[kRopeFrequencies];
};

struct Turn {
  double cosine, sine;
};

// Sine and cosine of an angle of up to 2^31, to about 1 ulp. CUDA's own functions are not used:
// they keep the digits of larger angles in local memory. The remainder after multiples of pi / 2,
// in two parts, goes into Taylor's series. The terms that are left out would change it by 2^-60.
__device__ inline Turn TurnBy(double angle) {
  const double quarters = rint(angle * 0.63661977236758134308);  // 2 / pi.
  double r = __fma_rn(-quarters, 1.57079632679489655800e+00, angle);
  r = __fma_rn(-quarters, 6.12323399573676603587e-17, r);
  const double r2 = r * r;
  double cosine = 1.0, sine = 1.0;
#pragma unroll
  for (int k = 9; k > 0; --k) {
    cosine = __fma_rn(-r2 * (1.0 / ((2 * k - 1) * (2 * k))), cosine, 1.0);
    sine = __fma_rn(-r2 * (1.0 / (2 * k * (2 * k + 1))), sine, 1.0);
  }
  sine *= r;
  const int quarter = static_cast<int>(static_cast<int64_t>(quarters) & 3);
  const double c = quarter % 2 == 0 ? cosine : sine, s = quarter % 2 == 0 ? sine : cosine;
  return {quarter == 1 || quarter == 2 ? -c : c, quarter >= 2 ? -s : s};
}

// Columns first on of each half of a row, one for each frequency given.
__global__ void RopeTableEntries(Frequencies frequencies, int64_t first, int64_t count,
                                 double factor, int64_t positions, int64_t half, float* table) {
  ForEachPiece(positions, count, [&](int64_t position, int64_t i) {
    const Turn turn = TurnBy(static_cast<double>(position) * frequencies.at[i]);
    float* const cosine = table + position * 2 * half + first + i;
    cosine[0] = static_cast<float>(factor * turn.cosine);
    cosine[half] = static_cast<float>(factor * turn.sine);
  });
}

// `x`: the first token's first head; `stride` elements from token to token.
template <typename T>
__global__ void RotateHeads(const float* table, const int32_t* positions, float sign,
                            int64_t tokens, int64_t heads, int64_t half, int64_t stride, bool packs,
                            T* x) {
  constexpr int kPiece = kPack<T>;
  const auto pieces = static_cast<uint32_t>(CeilDiv(half, kPiece));
  ForEachPiece(tokens, heads * pieces, [&](int64_t token, int64_t item) {
    const uint32_t head = static_cast<uint32_t>(item) / pieces;
    const int64_t first = int64_t{static_cast<uint32_t>(item) % pieces} * kPiece;
    const int64_t count = half - first;
    T* const at = x + token * stride + head * 2 * half + first;
    const float* const cosines = table + positions[token] * 2 * half + first;
    Elements<T, kPiece> a, b;
    Elements<float, kPiece> cosine, sine;
    a.Read(at, count, packs);
    b.Read(at + half, count, packs);
    cosine.Read(cosines, count, packs);
    sine.Read(cosines + half, count, packs);
    float turned_a[kPiece], turned_b[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const float s = sign * sine[i];
      turned_a[i] = __fmaf_rn(a[i], cosine[i], -(b[i] * s));
      turned_b[i] = __fmaf_rn(b[i], cosine[i], a[i] * s);
    }
    a.Set(turned_a);
    b.Set(turned_b);
    a.Write(at, count, packs);
    b.Write(at + half, count, packs);
  });
}

}  // namespace

void RopeTableCuda(CudaStreamHandle stream, const std::vector<double>& frequencies, double factor,
                   const View& table) {
  const int64_t positions = table.shape[0], half = table.shape[2];
  for (int64_t first = 0; first < half; first += kRopeFrequencies) {
    const int64_t count = std::min(kRopeFrequencies, half - first);
    Frequencies some{};
    std::copy_n(frequencies.begin() + first, count, some.at);
    const RowGrid on = GridOfRows(positions, count);
    Launch<RopeTableEntries>(stream, on.grid, on.block, 0, some, first, count, factor, positions,
                             half, table.As<float>());
  }
}

void RopeCuda(CudaStreamHandle stream, const ConstView& table, const ConstView& positions,
              bool backward, const Heads& x) {
  ForFloat(x.tensor.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const Shape& shape = x.tensor.shape;
    const int64_t tokens = shape[0] * shape[1], half = shape[3] / 2;
    const RowGrid on = GridOfRows(tokens, x.count * CeilDiv(half, kPack<T>));
    T* const first = x.tensor.As<T>() + x.begin();
    const bool packs = InPacks(first, x.stride()) && half % kPack<T> == 0 && IsAligned(table.data);
    Launch<RotateHeads<T>>(stream, on.grid, on.block, 0, table.As<float>(), positions.As<int32_t>(),
                           backward ? -1.0f : 1.0f, tokens, x.count, half, x.stride(), packs,
                           first);
  });
}

}  // namespace fsdp
