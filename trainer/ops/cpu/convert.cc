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

// BFloat16(x) in the lower half of each lane.
__m256i RoundedToBFloat16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(nan),
                                         _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
}

}  // namespace

// gcc packs what it chooses from before it chooses: a third slower.
void Convert(const float* x, int64_t n, BFloat16* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i halves = _mm256_packus_epi32(RoundedToBFloat16(_mm256_loadu_ps(x + i)),
                                               RoundedToBFloat16(_mm256_loadu_ps(x + i + 8)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), _mm256_permute4x64_epi64(halves, 0xd8));
  }
  for (; i < n; ++i) y[i] = BFloat16(x[i]);
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
