// For processors with AMX.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#include <immintrin.h>

#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_on_tiles.h"
#include "trainer/ops/cpu/gemm/hardware_tiles.h"

namespace fsdp {
namespace {

// The instruction takes subnormals for zero; a thread that computes has none.
struct RoundByInstruction {
  static FSDP_ALWAYS_INLINE Halves Two(Vector first, Vector second) {
    return (Halves)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
  }
};

struct Hardware {
  using Tiles = HardwareTiles;
  using Rounding = RoundByInstruction;
};

}  // namespace

const AttentionKernelsBf16 kAttentionTilesAmx = kOnTiles<Hardware>;

}  // namespace fsdp
