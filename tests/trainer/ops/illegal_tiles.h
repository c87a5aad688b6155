// The instructions of AMX on a processor without them: each is illegal there, and its signal's
// handler does what Intel's SDM says (volume 2, LDTILECFG, TDPBF16PS, TILELOADD ...). For one
// thread, and for tests that want the code itself, its addresses and operands, not its emulation.
#ifndef FSDP_TRAIN_TESTS_TRAINER_OPS_ILLEGAL_TILES_H_
#define FSDP_TRAIN_TESTS_TRAINER_OPS_ILLEGAL_TILES_H_

#include <signal.h>
#include <ucontext.h>
#include <xmmintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace fsdp::testing {

class IllegalTiles {
 public:
  IllegalTiles() {
    struct sigaction action = {};
    action.sa_sigaction = Handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
    state = {};
  }
  ~IllegalTiles() { sigaction(SIGILL, &before_, nullptr); }
  IllegalTiles(const IllegalTiles&) = delete;
  IllegalTiles& operator=(const IllegalTiles&) = delete;

  static bool configured() { return state.config[0] != 0; }
  static int64_t products() { return state.products; }

 private:
  struct State {
    uint8_t config[64];  // As LDTILECFG reads it.
    uint8_t tiles[8][16][64];
    int64_t products;
  };
  static inline State state;

  static int Rows(int t) { return state.config[48 + t]; }
  static int RowBytes(int t) { return state.config[16 + 2 * t]; }

  static void Require(bool fine) {
    if (!fine) std::abort();  // Illegal on any processor.
  }

  static float Of(const uint8_t* half) {
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, half, 2);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }

  static void Multiply(int c, int a, int b) {
    Require(Rows(c) == Rows(a) && RowBytes(c) == RowBytes(b) && RowBytes(a) == 4 * Rows(b));
    for (int m = 0; m < Rows(c); ++m) {
      for (int n = 0; n < RowBytes(c) / 4; ++n) {
        float even = 0, odd = 0, sum;
        for (int k = 0; k < Rows(b); ++k) {
          const uint8_t *x = state.tiles[a][m] + 4 * k, *y = state.tiles[b][k] + 4 * n;
          even = std::fma(Of(x), Of(y), even);
          odd = std::fma(Of(x + 2), Of(y + 2), odd);
        }
        std::memcpy(&sum, state.tiles[c][m] + 4 * n, 4);
        sum = sum + (even + odd);
        std::memcpy(state.tiles[c][m] + 4 * n, &sum, 4);
      }
    }
    ++state.products;
  }

  // An operand in memory; `at` is its ModRM byte, `apart` an index times its scale.
  struct Operand {
    char* data;
    int64_t apart;
    const uint8_t* end;
  };
  static Operand Memory(const uint8_t* at, bool base_8, bool index_8, const greg_t* registers) {
    static constexpr int kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                         REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                         REG_R12, REG_R13, REG_R14, REG_R15};
    const auto value = [&](int r) { return static_cast<int64_t>(registers[kRegisters[r]]); };
    const int mod = *at >> 6, rm = *at & 7;
    ++at;
    int64_t address = 0, apart = 0;
    int base = rm;
    if (rm == 4) {
      const int scale = *at >> 6, index = (*at >> 3 & 7) + 8 * index_8;
      base = *at & 7;
      ++at;
      if (index != 4) apart = value(index) << scale;
    }
    Require(mod != 0 || base != 5);  // Neither an address alone nor one from the instruction.
    address = value(base + 8 * base_8);
    if (mod == 1) {
      address += static_cast<int8_t>(*at);
      at += 1;
    } else if (mod == 2) {
      int32_t distance;
      std::memcpy(&distance, at, 4);
      address += distance;
      at += 4;
    }
    return {reinterpret_cast<char*>(address), apart, at};
  }

  static void Handle(int, siginfo_t*, void* context) {
    _mm_setcsr(_mm_getcsr() | 0x8040);  // A handler begins with a mode of its own.
    greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const auto* const at = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    Require(at[0] == 0xc4 && (at[1] & 0x1f) == 2);  // VEX of three bytes, map 0F38.
    const bool index_8 = !(at[1] & 0x40), base_8 = !(at[1] & 0x20);
    const int prefix = at[2] & 3, vvvv = ~(at[2] >> 3) & 15, code = at[3];
    const uint8_t modrm = at[4];
    const int reg = modrm >> 3 & 7, rm = modrm & 7;
    const bool in_memory = modrm >> 6 != 3;
    const uint8_t* end = at + 5;
    if (code == 0x49 && prefix == 0 && in_memory) {  // LDTILECFG
      const Operand from = Memory(at + 4, base_8, index_8, registers);
      std::memcpy(state.config, from.data + from.apart, 64);
      std::memset(state.tiles, 0, sizeof(state.tiles));
      Require(state.config[0] <= 1 && state.config[1] == 0);
      for (int i = 2; i < 16; ++i) Require(state.config[i] == 0);
      for (int t = 0; t < 16; ++t) {
        Require(state.config[17 + 2 * t] == 0 && RowBytes(t) <= (t < 8 ? 64 : 0));
        Require(Rows(t) <= (t < 8 ? 16 : 0));
      }
      end = from.end;
    } else if (code == 0x49 && prefix == 0) {  // TILERELEASE
      Require(modrm == 0xc0);
      std::memset(state.config, 0, 64);
    } else {
      Require(configured());
      if (code == 0x49 && prefix == 3) {  // TILEZERO
        std::memset(state.tiles[reg], 0, sizeof(state.tiles[reg]));
      } else if (code == 0x5c && prefix == 2) {  // TDPBF16PS
        Require(!in_memory && reg != rm && reg != vvvv && rm != vvvv);
        Multiply(reg, rm, vvvv);
      } else {
        Require(code == 0x4b && in_memory && rm == 4);
        const Operand rows = Memory(at + 4, base_8, index_8, registers);
        for (int r = 0; r < Rows(reg); ++r) {
          char* const row = rows.data + r * rows.apart;
          if (prefix == 2) {  // TILESTORED
            std::memcpy(row, state.tiles[reg][r], RowBytes(reg));
          } else {  // TILELOADD, TILELOADDT1
            Require(prefix == 3 || prefix == 1);
            std::memcpy(state.tiles[reg][r], row, RowBytes(reg));
          }
        }
        end = rows.end;
      }
    }
    registers[REG_RIP] = reinterpret_cast<greg_t>(end);
  }

  struct sigaction before_ = {};
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_OPS_ILLEGAL_TILES_H_
