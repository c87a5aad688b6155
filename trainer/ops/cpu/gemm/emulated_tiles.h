// Tiles by vectors, with the bits of AMX's, for sources that are compiled once for each instruction
// set (isa.h).
// Tests: tests/trainer/ops/gemm_tiles_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_EMULATED_TILES_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_EMULATED_TILES_H_

#include <cstdint>

#include "trainer/ops/cpu/gemm/tile_pack.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// Eight tiles of 16 rows of 64 bytes, as HardwareTiles (hardware_tiles.h) has them.
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
    constexpr int kRows = kWidth / 2;  // Sums of 2 kRows vectors stay in registers.
    constexpr int kUpper = -1 << 16;   // The half of a pair with the odd k.
    alignas(64) float left[2][16][16];
    for (int i = 0; i < 16 * 16; i += kWidth) {
      const Pairs pairs = (Pairs)Read(tiles_[a] + i);
      Write(left[0][0] + i, (Floats)(pairs << 16));
      Write(left[1][0] + i, (Floats)(pairs & kUpper));
    }
    for (int col = 0; col < 16; col += kWidth) {
      for (int row = 0; row < 16; row += kRows) {
        Floats even[kRows] = {}, odd[kRows] = {};
        for (int p = 0; p < 16; ++p) {
          const Pairs pairs = (Pairs)Read(tiles_[b] + 16 * p + col);
          const Floats low = (Floats)(pairs << 16), high = (Floats)(pairs & kUpper);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            even[r] += left[0][row + r][p] * low;
            odd[r] += left[1][row + r][p] * high;
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          auto* const sums = reinterpret_cast<float*>(tiles_[c]) + 16 * (row + r) + col;
          Write(sums, Read(sums) + (even[r] + odd[r]));
        }
      }
    }
  }

 private:
#ifdef __AVX512F__
  static constexpr int kWidth = 16;
#else
  static constexpr int kWidth = 8;
#endif
  typedef float Floats __attribute__((vector_size(kWidth * 4)));
  typedef int Pairs __attribute__((vector_size(kWidth * 4)));

  static FSDP_ALWAYS_INLINE Floats Read(const void* from) {
    Floats v;
    __builtin_memcpy(&v, from, sizeof(v));
    return v;
  }
  static FSDP_ALWAYS_INLINE void Write(float* to, Floats v) { __builtin_memcpy(to, &v, sizeof(v)); }

  alignas(64) uint32_t tiles_[8][16 * 16];
};

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_EMULATED_TILES_H_
