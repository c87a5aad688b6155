// The kinds of kernels, of which a process takes one.
// Tests: tests/trainer/ops/kinds_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_KINDS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_KINDS_H_

#include <functional>
#include <string>

namespace fsdp {

// The kinds of kernels. A kind may use the instructions of those before it.
enum class Isa {
  kAvx2,
  kAvx512,      // x86-64-v4.
  kAvx512Bf16,  // VDPBF16PS, VCVTNEPS2BF16: they change no bit.
  kAmx,         // Products of two bf16 on tiles, in an order of sums of their own (gemm.h).
};

// Who computes the products that kAmx has on tiles.
enum class TileUse { kNone, kHardware, kEmulated };

// How products of two bf16 without tiles are computed where the processor has VDPBF16PS. All give
// the same bits (gemm_pairs.h).
enum class PairWay {
  kFaster,  // By a measurement at the first use.
  kInstruction,
  kFloats,  // Widened, by fp32's fused multiply-adds.
};

struct IsaChoice {
  // The kind's: "avx2", "avx512", "avx512_bf16" or "amx"; "amx_emulated", or
  // "amx_emulated_on_avx2", whose isa is kAvx2 on any processor.
  std::string name;
  Isa isa = Isa::kAvx2;  // For all but those products.
  TileUse tiles = TileUse::kNone;
  PairWay pairs = PairWay::kFaster;  // For an isa of kAvx512Bf16 or greater.
  std::string refused;  // Why a greater kind that the processor has is not used; empty: no reason.
};

struct Processor {
  Isa best = Isa::kAvx2;
  // Asks the system for tiles and tries them: empty, or why they cannot be used. Called at most
  // once, and only for kAmx.
  std::function<std::string()> take_tiles;
};

// The kind called `wanted`, or where that is null or empty the best one. " pairs" or " floats" may
// follow the name of a kind with VDPBF16PS: kInstruction or kFloats. Tiles that are refused leave
// the kind before. Throws ConfigError for a kind that the processor lacks and for no kind; it names
// those that the processor has.
IsaChoice ChooseIsa(const char* wanted, const Processor& processor);

// This process's choice: by FSDP_TRAIN_ISA, once, at the first call. The program calls it before it
// has threads, since the system looks at the signal stacks of all threads when it is asked for
// tiles.
const IsaChoice& ThisIsa();

// This process's kind for `devices` and for records. " pairs" or " floats" follows where the
// processor has VDPBF16PS: whether it is used. FSDP_TRAIN_ISA takes such a name. The first call may
// measure for some milliseconds (MultiplyPairs(), gemm_pairs.h).
std::string KernelsInUse();

// The order of sums, in which ranks must agree: "avx2", "avx512" or "amx". Tiles count only where
// bf16 is multiplied.
std::string OrderOfSums(const IsaChoice& choice, bool multiplies_bf16);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_KINDS_H_
