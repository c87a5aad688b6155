// For processors with AVX512_BF16.
// Tests: tests/trainer/ops/gemm_bf16_test.cc
#include <immintrin.h>

#include "trainer/ops/cpu/gemm/gemm_kernels.h"
#include "trainer/ops/cpu/gemm/gemm_tile.h"

namespace fsdp {
namespace {

struct Pairs {
  static FSDP_ALWAYS_INLINE Vector MulAdd(Vector left, Vector right, Vector sum) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
  }
};

}  // namespace

const GemmKernels kGemmBf16 = {kMaxRows, kCols, RunStrip<Pairs>};

void AddPairsBf16(const uint32_t* a, const uint32_t* b, float* sums) {
  Store(sums, Pairs::MulAdd(Load(a), Load(b), Load(sums)));
}

}  // namespace fsdp
