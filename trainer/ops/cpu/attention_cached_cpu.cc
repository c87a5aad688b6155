#include "trainer/ops/cpu/attention_cached_cpu.h"

#include <algorithm>
#include <cmath>

#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// One query over `count` keys and values, whose rows are `stride` apart.
void AttendOne(const float* q, const float* k, const float* v, int64_t count, int64_t stride,
               int64_t head_dim, float scale, float* scores, float* out) {
  float max = -INFINITY;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = scale * Dot(q, k + j * stride, head_dim);
    max = std::max(max, scores[j]);
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = Exp(scores[j] - max);
    sum += scores[j];
  }
  std::fill_n(out, head_dim, 0.0f);
  const float normalise = 1 / sum;
  for (int64_t j = 0; j < count; ++j) {
    const float p = scores[j] * normalise;
    const float* row = v + j * stride;
#pragma omp simd
    for (int64_t i = 0; i < head_dim; ++i) out[i] += p * row[i];
  }
}

}  // namespace

void AttentionCachedCpu(ThreadPool& pool, const AttentionCachedDims& s, const AttentionInputs& in,
                        const View& cache_k, const View& cache_v, const View& out,
                        const View& workspace) {
  const ConstHeads &q = in.q, &k = in.k, &v = in.v;
  const int32_t* const positions = in.positions.As<int32_t>();
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  const int64_t group = s.heads / s.kv_heads, stride = s.kv_heads * s.head_dim;
  pool.ParallelFor(s.batch * s.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      float* const scores = workspace.As<float>() + task * ScoresOfAGroup(s);
      const int64_t b = task / s.kv_heads, head = task % s.kv_heads;
      const int64_t cached = (b * s.capacity * s.kv_heads + head) * s.head_dim;
      float* const keys = cache_k.As<float>() + cached;
      float* const values = cache_v.As<float>() + cached;
      for (int64_t t = 0; t < s.n; ++t) {
        const int64_t row = b * s.n + t, to = positions[row] * stride;
        std::copy_n(k.data() + row * k.stride() + head * s.head_dim, s.head_dim, keys + to);
        std::copy_n(v.data() + row * v.stride() + head * s.head_dim, s.head_dim, values + to);
      }
      for (int64_t t = 0; t < s.n; ++t) {
        const int64_t row = b * s.n + t;
        for (int64_t h = head * group; h < (head + 1) * group; ++h) {
          AttendOne(q.data() + row * q.stride() + h * s.head_dim, keys, values, positions[row] + 1,
                    stride, s.head_dim, scale, scores,
                    out.As<float>() + (row * s.heads + h) * s.head_dim);
        }
      }
    }
  });
}

}  // namespace fsdp
