// Products of bf16 by the processor's own instruction, where it gives the bits that we define.
// Tests: tests/trainer/ops/gemm_bf16_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PAIRS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PAIRS_H_

#include <cstdint>
#include <functional>

#include "trainer/ops/cpu/kinds.h"

namespace fsdp {

// The definition: sum + a_odd b_odd + a_even b_even in fp32, by two fused multiply-adds in that
// order. A pair is two bf16 of consecutive k, the even one in the lower half; a product of two is
// exact. Threads must flush subnormals to zero, as compute threads do.
float AddPair(float sum, uint32_t a, uint32_t b);

// Whether the processor has AVX512_BF16 (UseAvx512Bf16) and gives AddPair()'s bits in 4,096 fixed
// cases, infinities, NaN and cancellation among them. Determined once.
bool HasPairs();

// Seconds that the same products take by VDPBF16PS, and widened by fp32's fused multiply-adds.
struct PairTimes {
  double instruction, floats;
};

// The shortest of several rounds of each way, by turns, on the calling thread: 3 ms on an idle core
// of 1 to 4 GHz. The factors are packed and stay in a second-level cache. The processor has
// AVX512_BF16.
PairTimes MeasurePairs();

// Whether VDPBF16PS is used: HasPairs(), and `way` says so. kFaster: `measure` is called, and
// equal times are for the instruction, since pairs take half the memory.
bool UsePairs(PairWay way, bool has_pairs, const std::function<PairTimes()>& measure);

// Whether this process multiplies by VDPBF16PS, in Gemm() and in attention. Determined once, by
// the first thread that asks; others wait for it.
//
// One measurement decides for both. Their times by VDPBF16PS over those of floats, GPT-2 124M,
// `bench ops --dtype bf16` with FSDP_TRAIN_ISA="avx512_bf16 pairs" and " floats", 2026-11-30, Xeon
// of model 207: products 1.40 to 1.50, attention forward 1.24, backward 1.30. Zen 4, 2026-11-22:
// attention 0.57 to 0.65 (docs/benchmarks/cpu.md).
bool MultiplyPairs();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_PAIRS_H_
