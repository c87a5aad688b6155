#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/feature_backends.h"

namespace fsdp {
namespace {

constexpr int kColumns = 4;  // Per thread.
constexpr int kHotRows = 16;

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

// The slots in the order of PoolBagsBackward().
template <typename T>
struct Slots {
  const T* d;
  const int32_t *places, *order, *first;
  int64_t slots, tables, n, width;
  bool packs;

  // -1 behind the last slot.
  __device__ int32_t PlaceAt(int64_t k) const { return order[k] < 0 ? -1 : places[order[k]]; }

  // Adds the bag of slot order[k], columns from `col` on.
  __device__ void Add(int64_t k, int64_t col, float (&sum)[kColumns]) const {
    const auto slot = static_cast<int32_t>(order[k] % slots);
    int64_t table = 0, behind = tables;  // Its first slot is not behind this one; that one's is.
    while (behind - table > 1) {
      const int64_t middle = (table + behind) / 2;
      (first[middle] <= slot ? table : behind) = middle;
    }
    Elements<T, kColumns> in;
    in.Read(d + (order[k] / slots * tables + table) * width + col, width - col, packs);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum[j] += in[j];
  }

  __device__ void AddTo(float* sums, int64_t place, int64_t col,
                        const float (&sum)[kColumns]) const {
    Elements<float, kColumns> to;
    to.Set(sum);
    to.Write(sums + place * width + col, width - col, packs);
  }
};

// A row of threads for each place in the order: where a place's first slot stands, it adds all of
// that place's, unless these are kHotSlots or more.
template <typename T>
__global__ void AddToPlaces(Slots<T> s, float* sums) {
  ForEachPiece(s.n, CeilDiv(s.width, kColumns), [&](int64_t k, int64_t piece) {
    const int32_t place = s.PlaceAt(k);
    if (place < 0 || (k > 0 && s.PlaceAt(k - 1) == place)) return;
    if (k + kHotSlots <= s.n && s.PlaceAt(k + kHotSlots - 1) == place) return;
    const int64_t col = piece * kColumns;
    Elements<float, kColumns> before;
    before.Read(sums + place * s.width + col, s.width - col, s.packs);
    float sum[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum[j] = before[j];
    for (int64_t i = k; i < s.n && s.PlaceAt(i) == place; ++i) s.Add(i, col, sum);
    s.AddTo(sums, place, col, sum);
  });
}

// The places that AddToPlaces() leaves. Their slots are neighbours, so one of each place's stands
// at a multiple of kHotSlots in the order; the first such one has a block, whose rows of threads
// take turns with the slots. Their sums are added in a tree.
template <typename T>
__global__ void AddToHotPlaces(Slots<T> s, float* sums) {
  __shared__ float shared[kHotRows][kColumns][kWarp];
  const int64_t at = int64_t{blockIdx.x} * kHotSlots;
  const int32_t place = s.PlaceAt(at);
  if (place < 0 || (at > 0 && s.PlaceAt(at - kHotSlots) == place)) return;
  // The first k of [low, high] for which PlaceAt(k) == place is `is`; high if there is none before.
  const auto first = [&](int64_t low, int64_t high, bool is) {
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if ((s.PlaceAt(middle) == place) == is) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  const int64_t begin = first(at < kHotSlots ? 0 : at - kHotSlots, at, true),
                end = first(at, s.n, false);
  if (end - begin < kHotSlots) return;
  for (int64_t col = threadIdx.x * kColumns; col - threadIdx.x * kColumns < s.width;
       col += kWarp * kColumns) {
    float sum[kColumns] = {};
    for (int64_t k = begin + threadIdx.y; k < end && col < s.width; k += kHotRows) {
      s.Add(k, col, sum);
    }
    for (int half = kHotRows / 2; half > 0; half /= 2) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) shared[threadIdx.y][j][threadIdx.x] = sum[j];
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kColumns && static_cast<int>(threadIdx.y) < half; ++j) {
        sum[j] += shared[threadIdx.y + half][j][threadIdx.x];
      }
      __syncthreads();
    }
    if (threadIdx.y > 0 || col >= s.width) continue;
    Elements<float, kColumns> before;
    before.Read(sums + place * s.width + col, s.width - col, s.packs);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum[j] = before[j] + sum[j];
    s.AddTo(sums, place, col, sum);
  }
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
    const Slots<T> all{d.As<T>(),
                       places.As<int32_t>(),
                       order.As<int32_t>(),
                       first.As<int32_t>(),
                       places.shape[1],
                       first.NumElements() - 1,
                       n,
                       width,
                       InPacks(d.As<T>(), width) && InPacks(sums.As<float>(), width)};
    const RowGrid on = GridOfRows(n, CeilDiv(width, kColumns));
    Launch<AddToPlaces<T>>(stream, on.grid, on.block, 0, all, sums.As<float>());
    if (n < kHotSlots) return;
    Launch<AddToHotPlaces<T>>(stream, dim3(static_cast<unsigned>(CeilDiv(n, kHotSlots))),
                              dim3(kWarp, kHotRows), 0, all, sums.As<float>());
  });
}

}  // namespace fsdp
