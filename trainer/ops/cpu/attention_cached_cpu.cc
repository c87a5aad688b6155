#include "trainer/ops/cpu/attention_cached_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "trainer/ops/cpu/head_rows.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// The bias of a query's scores: table[buckets[j]] for key j. Null: none.
struct BiasRow {
  const float* table = nullptr;
  const int32_t* buckets = nullptr;
};

// One query over `count` keys and values.
void AttendOne(const float* q, const HeadRows<const float>& k, const HeadRows<const float>& v,
               int64_t count, int64_t head_dim, float scale, const BiasRow& bias, float* scores,
               float* out) {
  float max = -INFINITY;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = scale * Dot(q, k.data + j * k.stride, head_dim);
    if (bias.table != nullptr) scores[j] += bias.table[bias.buckets[j]];
    max = std::max(max, scores[j]);
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = Exp(scores[j] - max);
    sum += scores[j];
  }
  std::fill_n(out, head_dim, 0.0f);
  if (count == 0) return;
  const float normalise = 1 / sum;
  for (int64_t j = 0; j < count; ++j) {
    const float p = scores[j] * normalise;
    const float* row = v.data + j * v.stride;
#pragma omp simd
    for (int64_t i = 0; i < head_dim; ++i) out[i] += p * row[i];
  }
}

// Row t of a head of new keys or values becomes row positions[t] of the cache.
void Remember(const AttentionCachedDims& s, const ConstHeads& x, int64_t sample, int64_t head,
              const int32_t* positions, const Heads& cache) {
  const int64_t size = SizeOf(x.tensor.dtype);
  const std::byte* const from = x.tensor.data + HeadBegin(x, sample, head) * size;
  std::byte* const to = cache.tensor.data + HeadBegin(cache, sample, head) * size;
  for (int64_t t = 0; t < s.n; ++t) {
    std::memcpy(to + positions[t] * cache.stride() * size, from + t * x.stride() * size,
                s.head_dim * size);
  }
}

}  // namespace

void AttentionCachedCpu(ThreadPool& pool, const AttentionCachedDims& s, const AttentionInputs& in,
                        const View& cache_k, const View& cache_v, const View& out_view,
                        const View& workspace) {
  const bool causal = in.mask == AttentionMask::kCausal;
  const int64_t group = s.heads / s.kv_heads;
  const Heads cached_keys(cache_k, 0, s.kv_heads), cached_values(cache_v, 0, s.kv_heads);
  const ConstHeads all_keys = causal ? ConstHeads(cached_keys) : in.k;
  const ConstHeads all_values = causal ? ConstHeads(cached_values) : in.v;
  const Heads out(out_view, 0, s.heads);
  const int64_t columns = in.HasBias() ? in.bias.table.shape[1] : 0;
  pool.ParallelFor(s.batch * s.kv_heads, 1, [&](int64_t begin, int64_t end) {
    RowBuffers cached(out_view.dtype, 2, s.capacity * s.head_dim);
    RowBuffers rows(out_view.dtype, 2, s.n * s.head_dim);
    RowBuffers table(out_view.dtype, 1, columns);
    for (int64_t task = begin; task < end; ++task) {
      float* const scores = workspace.As<float>() + task * ScoresOfAGroup(s);
      const int64_t b = task / s.kv_heads, head = task % s.kv_heads;
      const int32_t* const positions =
          in.HasPositions() ? in.positions.As<int32_t>() + b * s.n : nullptr;
      int64_t count = s.capacity;  // Keys that some query sees.
      if (causal) {
        Remember(s, in.k, b, head, positions, cached_keys);
        Remember(s, in.v, b, head, positions, cached_values);
        count = s.n == 0 ? 0 : 1 + *std::max_element(positions, positions + s.n);
      } else if (in.HasLengths()) {
        count = std::clamp<int64_t>(in.lengths.As<int32_t>()[b], 0, s.capacity);
      }
      const HeadRows<const float> keys = ReadHead(all_keys, b, head, count, cached[0]);
      const HeadRows<const float> values = ReadHead(all_values, b, head, count, cached[1]);
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        const HeadRows<const float> q = ReadHead(in.q, b, h, s.n, rows[0]);
        const HeadRows<float> to = HeadToWrite(out, b, h, rows[1]);
        BiasRow bias;
        if (in.HasBias()) {
          bias.table = ReadFloats(in.bias.table, h * columns, columns, table[0]);
        }
        for (int64_t t = 0; t < s.n; ++t) {
          if (in.HasBias()) {
            const int64_t of_positions = in.bias.buckets.shape[0] - s.capacity + 1;
            bias.buckets = in.bias.buckets.As<int32_t>() + of_positions - 1 - positions[t];
          }
          AttendOne(q.data + t * q.stride, keys, values, causal ? positions[t] + 1 : count,
                    s.head_dim, in.Scale(), bias, scores, to.data + t * to.stride);
        }
        WriteHead(to, s.n, out, b, h);
      }
    }
  });
}

}  // namespace fsdp
