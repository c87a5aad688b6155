#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/feature_backends.h"

namespace fsdp {
namespace {

constexpr int kColumns = 4;  // Per thread.

// A bag a row of threads.
template <typename V, typename T>
__global__ void PoolRows(const V* vectors, const int32_t* places, const int32_t* first,
                         int64_t slots, int64_t tables, int64_t bags, int64_t width, bool packs,
                         T* out) {
  ForEachPiece(bags, CeilDiv(width, kColumns), [&](int64_t bag, int64_t piece) {
    const int64_t col = piece * kColumns, count = width - col;
    const int32_t* const row = places + bag / tables * slots;
    float sum[kColumns] = {};
    for (int32_t s = first[bag % tables]; s < first[bag % tables + 1]; ++s) {
      if (row[s] < 0) continue;
      Elements<V, kColumns> in;
      in.Read(vectors + row[s] * width + col, count, packs);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[j] += in[j];
    }
    Elements<T, kColumns> to;
    to.Set(sum);
    to.Write(out + bag * width + col, count, packs);
  });
}

// A row of threads for each place in the order: where a place's first slot stands, it adds all of
// that place's.
template <typename T>
__global__ void AddToPlaces(const T* d, const int32_t* places, const int32_t* order,
                            const int32_t* first, int64_t slots, int64_t tables, int64_t n,
                            int64_t width, bool packs, float* sums) {
  ForEachPiece(n, CeilDiv(width, kColumns), [&](int64_t k, int64_t piece) {
    if (order[k] < 0) return;
    const int32_t place = places[order[k]];
    if (k > 0 && places[order[k - 1]] == place) return;
    const int64_t col = piece * kColumns, count = width - col;
    float* const to = sums + place * width + col;
    Elements<float, kColumns> before;
    before.Read(to, count, packs);
    float sum[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum[j] = before[j];
    for (int64_t i = k; i < n && order[i] >= 0 && places[order[i]] == place; ++i) {
      const auto slot = static_cast<int32_t>(order[i] % slots);
      int64_t table = 0, behind = tables;  // Its first slot is not behind this one; that one's is.
      while (behind - table > 1) {
        const int64_t middle = (table + behind) / 2;
        (first[middle] <= slot ? table : behind) = middle;
      }
      Elements<T, kColumns> in;
      in.Read(d + (order[i] / slots * tables + table) * width + col, count, packs);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[j] += in[j];
    }
    Elements<float, kColumns> after;
    after.Set(sum);
    after.Write(to, count, packs);
  });
}

}  // namespace

void PoolBagsCuda(CudaStreamHandle stream, const ConstView& vectors, const ConstView& places,
                  const ConstView& first, const View& out) {
  ForFloat(vectors.dtype, [&](auto vector_is) {
    ForFloat(out.dtype, [&](auto is) {
      using V = typename decltype(vector_is)::type;
      using T = typename decltype(is)::type;
      if constexpr (!std::is_same_v<V, __half>) {
        const int64_t width = vectors.shape[1];
        const RowGrid on = GridOfRows(out.shape[0], CeilDiv(width, kColumns));
        Launch<PoolRows<V, T>>(
            stream, on.grid, on.block, 0, vectors.As<V>(), places.As<int32_t>(),
            first.As<int32_t>(), places.shape[1], first.NumElements() - 1, out.shape[0], width,
            InPacks(vectors.As<V>(), width) && InPacks(out.As<T>(), width), out.As<T>());
      }
    });
  });
}

void PoolBagsBackwardCuda(CudaStreamHandle stream, const ConstView& d, const ConstView& places,
                          const ConstView& order, const ConstView& first, const View& sums) {
  ForFloat(d.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t width = sums.shape[1], n = order.NumElements();
    const RowGrid on = GridOfRows(n, CeilDiv(width, kColumns));
    Launch<AddToPlaces<T>>(
        stream, on.grid, on.block, 0, d.As<T>(), places.As<int32_t>(), order.As<int32_t>(),
        first.As<int32_t>(), places.shape[1], first.NumElements() - 1, n, width,
        InPacks(d.As<T>(), width) && InPacks(sums.As<float>(), width), sums.As<float>());
  });
}

}  // namespace fsdp
