// Tiles of the processor, in processes that the system lets use them (kinds.h).
//
// Assembly, because gcc 12's _tile_* paste their argument into an instruction as it is written, so
// that a template's would be no number. The compiler knows nothing of tiles and keeps none.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_HARDWARE_TILES_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_HARDWARE_TILES_H_

#include <cstdint>

#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// The bytes that LDTILECFG reads (Intel SDM, volume 1, 18.2).
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The thread's eight tiles. Released, they cost nothing where the thread is switched, and are no
// part of the frames of its signals.
class HardwareTiles {
 public:
  HardwareTiles() {
    TileShapes shapes;
    for (int t = 0; t < 8; ++t) {
      shapes.row_bytes[t] = kTileRow;
      shapes.rows[t] = kTileRows;
    }
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }
  ~HardwareTiles() { asm volatile("tilerelease"); }
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;

  template <int t>
  FSDP_ALWAYS_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(t));
  }
  template <int t>
  FSDP_ALWAYS_INLINE void Load(const void* from, int64_t row) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row), "i"(t) : "memory");
  }
  // With the hint that the lines are not needed again soon: what is in the first-level cache stays.
  template <int t>
  FSDP_ALWAYS_INLINE void LoadPassing(const void* from) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(kTileRow), "i"(t) : "memory");
  }
  template <int t>
  FSDP_ALWAYS_INLINE void Store(float* to, int64_t row) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row), "i"(t) : "memory");
  }
  template <int c, int a, int b>
  FSDP_ALWAYS_INLINE void Multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_HARDWARE_TILES_H_
