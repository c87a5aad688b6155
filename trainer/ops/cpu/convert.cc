#include "trainer/ops/cpu/convert.h"

#include <immintrin.h>

#include <algorithm>

#include "trainer/ops/cpu/convert_bf16_kernels.h"
#include "trainer/ops/cpu/isa.h"

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

// BFloat16(x), for an x without NaN, in the lower half of each lane.
__m256i RoundedToBFloat16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_set1_epi32(0x7fff);
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, half), odd), 16);
}

// 16 elements, or those that are left.
void ConvertSixteen(const float* x, int64_t n, BFloat16* y) {
  if (n >= 16) {
    const __m256 low = _mm256_loadu_ps(x), high = _mm256_loadu_ps(x + 8);
    if (_mm256_movemask_ps(_mm256_cmp_ps(low, high, _CMP_UNORD_Q)) == 0) {
      const __m256i halves = _mm256_packus_epi32(RoundedToBFloat16(low), RoundedToBFloat16(high));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm256_permute4x64_epi64(halves, 0xd8));
      return;
    }
  }
  for (int64_t i = 0; i < std::min<int64_t>(n, 16); ++i) y[i] = BFloat16(x[i]);
}

constexpr int64_t kCall = 64;  // Elements that are worth a call.

}  // namespace

// gcc packs the candidates of a choice before it chooses, which is slower by a third. Testing for
// any NaN, and choosing only then, takes three quarters of the time of choosing in each lane; the
// instruction takes half.
void Convert(const float* x, int64_t n, BFloat16* y) {
  static_assert(sizeof(BFloat16) == sizeof(uint16_t));
  for (int64_t i = 0; i < n; i += 16) {
    if (n - i >= kCall && UseAvx512Bf16()) {
      i += ConvertBf16(x + i, n - i, reinterpret_cast<uint16_t*>(y + i));
    }
    ConvertSixteen(x + i, n - i, y + i);
  }
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
