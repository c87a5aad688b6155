#include "trainer/ops/cpu/rope_cpu.h"

#include <cmath>

#include "trainer/ops/cpu/floats.h"

namespace fsdp {
namespace {

void Rotate(const float* cosines, const float* sines, float sign, int64_t n, float* a, float* b) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float first = a[i], second = b[i], sine = sign * sines[i];
    a[i] = first * cosines[i] - second * sine;
    b[i] = second * cosines[i] + first * sine;
  }
}

}  // namespace

void RopeTableCpu(ThreadPool& pool, const std::vector<double>& frequencies, double factor,
                  const View& table) {
  const auto n = static_cast<int64_t>(frequencies.size());
  pool.ParallelFor(table.shape[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      float *cosines = table.As<float>() + p * 2 * n, *sines = cosines + n;
      for (int64_t i = 0; i < n; ++i) {
        const double angle = static_cast<double>(p) * frequencies[i];
        cosines[i] = static_cast<float>(factor * std::cos(angle));
        sines[i] = static_cast<float>(factor * std::sin(angle));
      }
    }
  });
}

void RopeCpu(ThreadPool& pool, const RopeShape& s, const ConstView& table,
             const ConstView& position_ids, bool backward, const Heads& x) {
  const int32_t* const positions = position_ids.As<int32_t>();
  const float sign = backward ? -1.0f : 1.0f;
  const View& tensor = x.tensor;
  pool.ParallelFor(s.tokens, 1, [&](int64_t begin, int64_t end) {
    FloatPiece first_half, second_half;
    for (int64_t t = begin; t < end; ++t) {
      const float *c = table.As<float>() + positions[t] * 2 * s.half, *sines = c + s.half;
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t head = x.begin() + t * x.stride() + h * 2 * s.half;
        ForEachPiece(tensor.dtype, 0, s.half, [&](int64_t from, int64_t n) {
          const int64_t at = head + from;
          Rotate(c + from, sines + from, sign, n, FloatsToChange(tensor, at, n, first_half),
                 FloatsToChange(tensor, at + s.half, n, second_half));
          WriteFloats(first_half, n, tensor, at);
          WriteFloats(second_half, n, tensor, at + s.half);
        });
      }
    }
  });
}

}  // namespace fsdp
