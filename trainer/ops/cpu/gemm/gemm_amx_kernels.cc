// For processors with AMX.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/gemm/hardware_tiles.h"
#include "trainer/ops/cpu/gemm/tile_product.h"

namespace fsdp {

const GemmTileKernels kGemmTilesAmx = {MultiplyOn<HardwareTiles>};

}  // namespace fsdp
