// For processors with AVX512_BF16.
#include "trainer/ops/cpu/convert_bf16_kernels.h"

#include <immintrin.h>

namespace fsdp {
namespace {

// Whether there is a subnormal number. The instruction takes it for zero, whatever the thread's
// setting, so the test looks at the bits.
bool AnySubnormal(__m512 x) {
  const __m512i u = _mm512_castps_si512(x);
  const __mmask16 small = _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7f800000));
  return _mm512_mask_test_epi32_mask(small, u, _mm512_set1_epi32(0x7fffff)) != 0;
}

}  // namespace

int64_t ConvertBf16(const float* x, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 values = _mm512_loadu_ps(x + i);
    if (AnySubnormal(values)) break;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), (__m256i)_mm512_cvtneps_pbh(values));
  }
  return i;
}

}  // namespace fsdp
