// Tests: tests/trainer/ops/gemm_tiles_test.cc
#include "trainer/ops/cpu/gemm/emulated_tiles.h"
#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/gemm/tile_product.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {

const GemmTileKernels FSDP_ISA(kGemmTiles) = {MultiplyOn<EmulatedTiles>};

}  // namespace fsdp
