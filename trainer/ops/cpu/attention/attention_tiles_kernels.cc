// Tests: tests/trainer/ops/attention_kernels_test.cc
#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/attention/attention_on_tiles.h"
#include "trainer/ops/cpu/gemm/emulated_tiles.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

struct Emulated {
  using Tiles = EmulatedTiles;
  using Rounding = RoundBits;
};

}  // namespace

const AttentionKernelsBf16 FSDP_ISA(kAttentionTiles) = kOnTiles<Emulated>;

}  // namespace fsdp
