#include "trainer/ops/cpu/bags_cpu.h"

#include <algorithm>
#include <vector>

#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

// The bag that a slot of a row lies in.
int64_t BagOf(const ConstView& first, int32_t slot) {
  const int32_t* const begin = first.As<int32_t>();
  return std::upper_bound(begin, begin + first.NumElements(), slot) - begin - 1;
}

// As ForEachPiece(), in pieces that a FloatPiece holds whatever the dtype.
template <typename Body>
void ForEachBuffer(int64_t width, const Body& body) {
  for (int64_t at = 0; at < width; at += kFloatPiece) body(at, std::min(kFloatPiece, width - at));
}

}  // namespace

void PoolBagsCpu(ThreadPool& pool, const ConstView& vectors, const ConstView& places,
                 const ConstView& first, const View& out) {
  const int64_t slots = places.shape[1], width = vectors.shape[1];
  const int64_t tables = first.NumElements() - 1;
  pool.ParallelFor(out.shape[0], 8, [&](int64_t begin, int64_t end) {
    FloatPiece sum_buffer, buffer;
    for (int64_t bag = begin; bag < end; ++bag) {
      const int32_t* const row = places.As<int32_t>() + bag / tables * slots;
      const int32_t* const range = first.As<int32_t>() + bag % tables;
      ForEachBuffer(width, [&](int64_t col, int64_t n) {
        float* const sum = FloatsToWrite(out, bag * width + col, sum_buffer);
        std::fill_n(sum, n, 0.0f);
        for (int32_t s = range[0]; s < range[1]; ++s) {
          if (row[s] < 0) continue;
          const float* const in = ReadFloats(vectors, row[s] * width + col, n, buffer);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) sum[j] += in[j];
        }
        WriteFloats(sum, n, out, bag * width + col);
      });
    }
  });
}

void PoolBagsBackwardCpu(ThreadPool& pool, const ConstView& d, const ConstView& places,
                         const ConstView& order, const ConstView& first, const View& sums) {
  const int64_t slots = places.shape[1], width = sums.shape[1], n_order = order.NumElements();
  const int64_t tables = first.NumElements() - 1;
  const int32_t* const place = places.As<int32_t>();
  const int32_t* const at = order.As<int32_t>();
  const int64_t present = std::find(at, at + n_order, -1) - at;
  // A thread has the places that begin in its stretch of the order, and all of each.
  const auto begins = [&](int64_t k) { return k == 0 || place[at[k - 1]] != place[at[k]]; };
  pool.ParallelFor(present, 16, [&](int64_t begin, int64_t end) {
    FloatPiece buffer;
    for (int64_t k = begin; k < end; ++k) {
      if (!begins(k)) continue;
      float* const to = sums.As<float>() + place[at[k]] * width;
      for (int64_t i = k; i < present && (i == k || !begins(i)); ++i) {
        const int64_t row = at[i] / slots;
        const int64_t bag = row * tables + BagOf(first, static_cast<int32_t>(at[i] % slots));
        ForEachBuffer(width, [&](int64_t col, int64_t n) {
          const float* const in = ReadFloats(d, bag * width + col, n, buffer);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) to[col + j] += in[j];
        });
      }
    }
  });
}

}  // namespace fsdp
