// Stochastic rounding of floats to bf16, for each instruction set (isa.h): a value between two of
// bf16 becomes the farther one from zero with the probability of its distance from the other, in
// steps of 2^-16. So the mean of many roundings is the value. Values of bf16 stay as they are, an
// infinity stays one, a NaN stays a (quiet) NaN, and a finite value stays finite: beyond the
// largest of bf16 it becomes that.
//
// The draw of 16 bits for element e of a tensor is, of Philox4x32-7's block with the counter
//   (low and high half of e / 64 * 8 + e % 32 / 4, low and high half of the tensor's hash),
// in word e % 64 / 32 * 2 + e / 2 % 2 the lower half where e is even, else the upper one: whichever
// part of the tensor is rounded, and the draws of 64 elements are two vectors without a shuffle.
// Seven rounds are the fewest that the paper calls Crush-resistant (Salmon et al. 2011; see
// trainer/core/philox.h). With ten an update all in bf16, in cache, took 1.22 ns an element instead
// of 1.02 (Zen 4, one thread, AVX-512).
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ROUNDING_KERNELS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ROUNDING_KERNELS_H_

#include <cstdint>

namespace fsdp {

// What a draw belongs to, besides its element.
struct RoundingStream {
  uint32_t key[2] = {};  // Of the seed, the update and what is rounded.
  uint64_t tensor = 0;   // A hash of its name.
};

inline constexpr int64_t kRoundingChunk = 64;  // Elements. Fastest from multiples of it on.

struct RoundingKernels {
  // y[i] = x[i], i < n, as bf16: elements [element, element + n) of the tensor.
  void (*round)(const RoundingStream& stream, int64_t element, const float* x, int64_t n,
                uint16_t* y);
};

extern const RoundingKernels kRoundingAvx2, kRoundingAvx512;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ROUNDING_KERNELS_H_
