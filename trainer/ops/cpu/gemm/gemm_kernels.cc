#include "trainer/ops/cpu/gemm/gemm_kernels.h"

#include "trainer/ops/cpu/gemm/gemm_tile.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

struct Floats {
  static FSDP_ALWAYS_INLINE Vector MulAdd(Vector left, Vector right, Vector sum) {
    return sum + left * right;
  }
};

}  // namespace

const GemmKernels FSDP_ISA(kGemm) = {kMaxRows, kCols, RunStrip<Floats>};

}  // namespace fsdp
