#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/element_backends.h"

namespace fsdp {
namespace {

constexpr int kPiece = 8;  // 16 bytes of the narrower dtypes.

template <typename From, typename To>
__global__ void CastElements(const From* x, int64_t n, bool packs, To* y) {
  ForEachPiece(1, CeilDiv(n, kPiece), [&](int64_t, int64_t piece) {
    const int64_t first = piece * kPiece, count = n - first;
    Elements<From, kPiece> from;
    Elements<To, kPiece> to;
    float values[kPiece];
    from.Read(x + first, count, packs);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values[i] = from[i];
    to.Set(values);
    to.Write(y + first, count, packs);
  });
}

}  // namespace

void CastCuda(CudaStreamHandle stream, const ConstView& x, const View& y) {
  ForFloat(x.dtype, [&](auto from) {
    ForFloat(y.dtype, [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      if constexpr (!std::is_same_v<From, To>) {
        const int64_t n = y.NumElements();
        const RowGrid on = GridOfRows(1, CeilDiv(n, kPiece));
        const bool packs = IsAligned(x.data) && IsAligned(y.data);
        Launch<CastElements<From, To>>(stream, on.grid, on.block, 0, x.As<From>(), n, packs,
                                       y.As<To>());
      }
    });
  });
}

}  // namespace fsdp
