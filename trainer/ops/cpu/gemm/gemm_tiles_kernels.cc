// The emulation of tiles by vectors.
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#include <cstdint>

#include "trainer/ops/cpu/gemm/gemm_tile.h"
#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/gemm/tile_product.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

class EmulatedTiles {
 public:
  template <int t>
  void Zero() {
    __builtin_memset(tiles_[t], 0, kTileBytes);
  }
  template <int t>
  void Load(const void* from, int64_t row) {
    CopyRows(static_cast<const char*>(from), row, reinterpret_cast<char*>(tiles_[t]));
  }
  template <int t>
  void LoadPassing(const void* from) {
    __builtin_memcpy(tiles_[t], from, kTileBytes);
  }
  template <int t>
  void Store(float* to, int64_t row) {
    for (int r = 0; r < kTileRows; ++r) {
      __builtin_memcpy(reinterpret_cast<char*>(to) + r * row, tiles_[t] + 16 * r, kTileRow);
    }
  }

  // TDPBF16PS: sum + (even + odd), each of the two a chain of 16 fused multiply-adds from zero.
  template <int c, int a, int b>
  void Multiply() {
    constexpr int kRows = kLanes / 2;  // Sums of 2 kRows vectors stay in registers.
    constexpr int kUpper = -1 << 16;   // The half of a pair with the odd k.
    alignas(64) float left[2][16][16];
    for (int i = 0; i < 16 * 16; i += kLanes) {
      const Bits pairs = (Bits)::fsdp::Load(tiles_[a] + i);
      ::fsdp::Store(left[0][0] + i, (Vector)(pairs << 16));
      ::fsdp::Store(left[1][0] + i, (Vector)(pairs & kUpper));
    }
    for (int col = 0; col < 16; col += kLanes) {
      for (int row = 0; row < 16; row += kRows) {
        Vector even[kRows] = {}, odd[kRows] = {};
        for (int p = 0; p < 16; ++p) {
          const Bits pairs = (Bits)::fsdp::Load(tiles_[b] + 16 * p + col);
          const Vector low = (Vector)(pairs << 16), high = (Vector)(pairs & kUpper);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            even[r] += left[0][row + r][p] * low;
            odd[r] += left[1][row + r][p] * high;
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          auto* const sums = reinterpret_cast<float*>(tiles_[c]) + 16 * (row + r) + col;
          ::fsdp::Store(sums, ::fsdp::Load(sums) + (even[r] + odd[r]));
        }
      }
    }
  }

 private:
  alignas(64) uint32_t tiles_[8][16 * 16];
};

}  // namespace

const GemmTileKernels FSDP_ISA(kGemmTiles) = {MultiplyOn<EmulatedTiles>};

}  // namespace fsdp
