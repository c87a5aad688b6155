#include "trainer/ops/cpu/convert.h"

#include <immintrin.h>

namespace fsdp {
namespace {

// Between the two halves: every value of either is a float32 first.
template <typename From, typename To>
void ConvertHalf(const From* x, int64_t n, To* y) {
  constexpr int64_t kBlock = 256;
  float block[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = n - i < kBlock ? n - i : kBlock;
    Convert(x + i, m, block);
    Convert(block, m, y + i);
  }
}

}  // namespace

void Convert(const float* x, int64_t n, BFloat16* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i].bits = BFloat16(x[i]).bits;
}

void Convert(const BFloat16* x, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
}

// gcc 12 has no vector form of _Float16's conversions without AVX-512.
void Convert(const float* x, int64_t n, Float16* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), half);
  }
  for (; i < n; ++i) y[i] = Float16(x[i]);
}

void Convert(const Float16* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(half));
  }
  for (; i < n; ++i) y[i] = static_cast<float>(x[i]);
}

void Convert(const BFloat16* x, int64_t n, Float16* y) { ConvertHalf(x, n, y); }
void Convert(const Float16* x, int64_t n, BFloat16* y) { ConvertHalf(x, n, y); }

}  // namespace fsdp
