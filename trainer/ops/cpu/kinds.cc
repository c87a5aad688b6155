#include "trainer/ops/cpu/kinds.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/ops/cpu/gemm/gemm_pairs.h"
#include "trainer/ops/cpu/gemm/gemm_tiles.h"

namespace fsdp {
namespace {

constexpr const char* kNames[] = {"avx2", "avx512", "avx512_bf16", "amx"};  // By Isa.

// The second word of a kind's name.
constexpr std::pair<PairWay, const char*> kPairWords[] = {{PairWay::kInstruction, " pairs"},
                                                          {PairWay::kFloats, " floats"}};

Isa Before(Isa isa) { return static_cast<Isa>(static_cast<int>(isa) - 1); }

// CPUID's leaf 7 (Intel SDM, volume 2A), because not every compiler's __builtin_cpu_supports()
// knows tiles. Whether the system saves them is TakeTiles()'s to find.
bool HasTiles() {
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;  // EDX: AMX-BF16, AMX-TILE.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & (kBf16 | kTiles)) == (kBf16 | kTiles);
}

Isa BestOfThisProcessor() {
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd");
  if (!avx512) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  return HasTiles() ? Isa::kAmx : Isa::kAvx512Bf16;
}

// Linux saves a thread's 8 KiB of tiles only for processes that have asked: the first use of a tile
// is an illegal instruction in others. CPUID does not say so.
std::string TakeTiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // asm/prctl.h: ARCH_REQ_XCOMP_PERM.
  if (syscall(SYS_arch_prctl, kRequest, kTileData) != 0) {
    const int error = errno;
    return std::string("the system refuses tiles to this process: ") + std::strerror(error) +
           (error == ENOSPC ? ", a signal stack is too small for them" : "");
  }
  try {
    return TilesGiveTheDefinition(kGemmTilesAmx)
               ? ""
               : "this processor's tiles give other results than their definition";
  } catch (const std::bad_alloc&) {
    return "no memory is left to try this processor's tiles";
  }
}

}  // namespace

IsaChoice ChooseIsa(const char* wanted, const Processor& processor) {
  const std::string_view words = wanted == nullptr ? "" : wanted;
  std::string_view name = words;
  IsaChoice choice;
  if (processor.best >= Isa::kAvx512Bf16) {
    for (const auto& [way, word] : kPairWords) {
      if (!name.ends_with(word)) continue;
      name.remove_suffix(std::strlen(word));
      choice.pairs = way;
      break;
    }
  }
  if (name == "amx_emulated" || words == "amx_emulated_on_avx2") {
    choice.isa = name != "amx_emulated"        ? Isa::kAvx2
                 : processor.best == Isa::kAmx ? Before(Isa::kAmx)
                                               : processor.best;
    choice.tiles = TileUse::kEmulated;
    choice.name = name;
    return choice;
  }
  std::string has;
  bool found = words.empty();
  choice.isa = processor.best;
  for (int kind = 0; kind <= static_cast<int>(processor.best); ++kind) {
    has += (kind == 0 ? "" : ", ") + std::string(kNames[kind]);
    if (name != kNames[kind]) continue;
    choice.isa = static_cast<Isa>(kind);
    found = true;
  }
  // Those without VDPBF16PS have no second word.
  found &= choice.isa >= Isa::kAvx512Bf16 || name == words;
  if (!found) {
    throw ConfigError("FSDP_TRAIN_ISA is \"" + std::string(words) +
                      "\", which this processor does not have: it has " + has);
  }
  if (choice.isa == Isa::kAmx) {
    choice.refused = processor.take_tiles();
    if (choice.refused.empty()) {
      choice.tiles = TileUse::kHardware;
    } else {
      choice.isa = Before(Isa::kAmx);
    }
  }
  choice.name = kNames[static_cast<int>(choice.isa)];
  return choice;
}

const IsaChoice& ThisIsa() {
  static const IsaChoice choice =
      ChooseIsa(std::getenv("FSDP_TRAIN_ISA"), {BestOfThisProcessor(), TakeTiles});
  return choice;
}

std::string KernelsInUse() {
  return ThisIsa().name + (!HasPairs() ? "" : MultiplyPairs() ? " pairs" : " floats");
}

std::string OrderOfSums(const IsaChoice& choice, bool multiplies_bf16) {
  std::string vectors = choice.isa >= Isa::kAvx512 ? "avx512" : "avx2";
  if (choice.tiles == TileUse::kNone || !multiplies_bf16) return vectors;
  // Without AVX-512 all else has AVX2's order.
  return vectors == "avx512" ? "amx" : "amx with avx2";
}

}  // namespace fsdp
