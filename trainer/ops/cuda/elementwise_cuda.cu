#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/element_backends.h"

namespace fsdp {
namespace {

template <typename T>
__global__ void AddElements(const T* a, const T* b, int64_t n, bool packs, T* y) {
  ForEachPiece(1, CeilDiv(n, kPack<T>), [&](int64_t, int64_t piece) {
    const int64_t first = piece * kPack<T>, count = n - first;
    Elements<T, kPack<T>> augend, addend, sum;
    float sums[kPack<T>];
    augend.Read(a + first, count, packs);
    addend.Read(b + first, count, packs);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sums[i] = augend[i] + addend[i];
    sum.Set(sums);
    sum.Write(y + first, count, packs);
  });
}

template <typename T>
__global__ void ScaleElements(float factor, int64_t n, bool packs, T* y) {
  ForEachPiece(1, CeilDiv(n, kPack<T>), [&](int64_t, int64_t piece) {
    const int64_t first = piece * kPack<T>, count = n - first;
    Elements<T, kPack<T>> value, scaled;
    float products[kPack<T>];
    value.Read(y + first, count, packs);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) products[i] = factor * value[i];
    scaled.Set(products);
    scaled.Write(y + first, count, packs);
  });
}

template <typename Bits>
__global__ void FillElements(Bits bits, int64_t n, bool packs, Bits* y) {
  Elements<Bits, kPack<Bits>> value;
#pragma unroll
  for (uint32_t& word : value.words) word = bits * (sizeof(Bits) == 2 ? 0x10001u : 1u);
  ForEachPiece(1, CeilDiv(n, kPack<Bits>), [&](int64_t, int64_t piece) {
    const int64_t first = piece * kPack<Bits>;
    value.Write(y + first, n - first, packs);
  });
}

template <typename Bits>
void Fill(CudaStreamHandle stream, Bits bits, int64_t n, Bits* y) {
  const RowGrid on = GridOfRows(1, CeilDiv(n, kPack<Bits>));
  Launch<FillElements<Bits>>(stream, on.grid, on.block, 0, bits, n, IsAligned(y), y);
}

}  // namespace

void AddCuda(CudaStreamHandle stream, const ConstView& a, const ConstView& b, const View& y) {
  ForFloat(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t n = y.NumElements();
    const RowGrid on = GridOfRows(1, CeilDiv(n, kPack<T>));
    const bool packs = IsAligned(a.data) && IsAligned(b.data) && IsAligned(y.data);
    Launch<AddElements<T>>(stream, on.grid, on.block, 0, a.As<T>(), b.As<T>(), n, packs, y.As<T>());
  });
}

void ScaleCuda(CudaStreamHandle stream, float factor, const View& y) {
  ForFloat(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t n = y.NumElements();
    const RowGrid on = GridOfRows(1, CeilDiv(n, kPack<T>));
    Launch<ScaleElements<T>>(stream, on.grid, on.block, 0, factor, n, IsAligned(y.data), y.As<T>());
  });
}

void FillCuda(CudaStreamHandle stream, uint32_t bits, const View& y) {
  const int64_t n = y.NumElements();
  if (SizeOf(y.dtype) == 4) return Fill(stream, bits, n, y.As<uint32_t>());
  Fill(stream, static_cast<uint16_t>(bits), n, y.As<uint16_t>());
}

void CopyCuda(CudaStreamHandle stream, const ConstView& x, const View& y) {
  if (x.data == y.data || x.bytes() == 0) return;
  CheckCuda(
      cudaMemcpyAsync(y.data, x.data, static_cast<size_t>(x.bytes()), cudaMemcpyDefault, stream),
      "cudaMemcpyAsync");
}

}  // namespace fsdp
