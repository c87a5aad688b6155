// For processors with AVX512_BF16.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#include <immintrin.h>

#include "trainer/ops/cpu/attention/attention_bf16.h"
#include "trainer/ops/cpu/attention/attention_kernels.h"

namespace fsdp {
namespace {

struct Pairs {
  using Step = uint32_t;
  static constexpr int64_t kPair = 1;
  static constexpr int64_t Steps(int64_t n) { return (n + 1) / 2; }
  static FSDP_ALWAYS_INLINE Vector MulAdd(Vector left, Vector right, Vector sum) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
  }
  static FSDP_ALWAYS_INLINE void Put(uint16_t even, uint16_t odd, Step* to, int64_t) {
    *to = even | static_cast<Step>(odd) << 16;
  }
  static FSDP_ALWAYS_INLINE void PutPairs(const uint16_t* from, int64_t n, Step* to) {
    __builtin_memcpy(to, from, n * sizeof(Step));  // As they lie.
  }
  // The instruction takes subnormals for zero; a thread that computes has none.
  static FSDP_ALWAYS_INLINE void Round(Vector even, Vector odd, Step* to, int64_t) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    const __m512i lanes = _mm512_cvtepu8_epi16(
        _mm256_set_epi8(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                        21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(lanes, both));
  }
  static FSDP_ALWAYS_INLINE void RoundRow(Vector x, Step* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)x));
  }
};

}  // namespace

const AttentionKernelsBf16 kAttentionPairs = kBf16<Pairs>;

}  // namespace fsdp
