// Rows of bf16 that attention reads and writes, in sources that are compiled once for each
// instruction set (isa.h). No result depends on the width of vectors.
// Tests: tests/trainer/ops/attention_kernels_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BF16_ROWS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BF16_ROWS_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_lanes.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

// BFloat16(x) in the upper half of each lane, zero in the lower half.
FSDP_ALWAYS_INLINE Bits RoundedToBf16(Vector x) { return RoundBitsToBf16((Bits)x); }

using Element = uint16_t;  // Bits of bf16.

FSDP_ALWAYS_INLINE float Value(Element x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}

// to[i] = scale from[i], rounded. `from` may be read to a multiple of kUnit.
void StoreRow(const float* from, float scale, int64_t n, Element* to) {
  typedef Element Halves __attribute__((vector_size(kLanes * 2)));
  const auto rounded = [&](int64_t i) __attribute__((always_inline)) {
    return __builtin_convertvector(RoundedToBf16(scale * LoadVector(from + i)) >> 16, Halves);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Halves halves = rounded(i);
    __builtin_memcpy(to + i, &halves, sizeof(halves));
  }
  if (i < n) {
    const Halves halves = rounded(i);
    for (int64_t l = 0; i + l < n; ++l) to[i + l] = halves[l];
  }
}

// Sixteen partial sums, added up in the same order whatever the width of vectors.
float Dot(const Element* x, const Element* y, int64_t n) {
  constexpr int64_t kSums = 16;
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
#pragma omp simd
    for (int64_t l = 0; l < kSums; ++l) {
      sums[l] = __builtin_fmaf(Value(x[i + l]), Value(y[i + l]), sums[l]);
    }
  }
  for (int64_t l = 0; i < n; ++i, ++l) sums[l] = __builtin_fmaf(Value(x[i]), Value(y[i]), sums[l]);
  for (int64_t half = kSums / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

}  // namespace
}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ATTENTION_ATTENTION_BF16_ROWS_H_
