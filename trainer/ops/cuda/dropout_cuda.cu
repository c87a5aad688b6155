#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/philox.h"
#include "trainer/ops/element_backends.h"

namespace fsdp {
namespace {

template <typename T>
__global__ void DropoutRows(const T* x, const int32_t* keys, uint32_t site, uint32_t threshold,
                            float scale, int64_t batch, int64_t size, bool packs, T* y) {
  constexpr int kPiece = kPack<T>;  // Words of one counter or two.
  ForEachPiece(batch, CeilDiv(size, kPiece), [&](int64_t sample, int64_t piece) {
    const int64_t first = piece * kPiece, count = size - first;
    const auto low = static_cast<uint32_t>(keys[2 * sample]);
    const auto high = static_cast<uint32_t>(keys[2 * sample + 1]);
    Elements<T, kPiece> in, out;
    in.Read(x + sample * size + first, count, packs);
    float values[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; i += 4) {
      const auto block = static_cast<uint64_t>(first + i) / 4;
      uint32_t words[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), site,
                           0};
      DevicePhilox(words, low, high);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[i + j] = words[j] >= threshold ? scale * in[i + j] : 0.0f;
      }
    }
    out.Set(values);
    out.Write(y + sample * size + first, count, packs);
  });
}

}  // namespace

void DropoutCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& keys, uint32_t site,
                 uint32_t threshold, float scale, const View& y) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t batch = x.shape[0], size = x.shape[1];
    const RowGrid on = GridOfRows(batch, CeilDiv(size, kPack<T>));
    const bool packs = InPacks(x.As<T>(), size) && InPacks(y.As<T>(), size);
    Launch<DropoutRows<T>>(stream, on.grid, on.block, 0, x.As<T>(), keys.As<int32_t>(), site,
                           threshold, scale, batch, size, packs, y.As<T>());
  });
}

}  // namespace fsdp
