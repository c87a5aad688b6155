// fp16 in place of the toolkit's header: conversions, and no arithmetic.
#ifndef FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_FP16_H_
#define FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_FP16_H_

#include <bit>
#include <cstdint>

#include "vector_types.h"

struct __half {
  uint16_t bits;
};
using half = __half;
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half x) { return static_cast<float>(std::bit_cast<_Float16>(x.bits)); }
// Rounds to nearest, ties to even; any NaN becomes 0x7fff.
inline __half __float2half(float x) {
  if (x != x) return {0x7fff};
  return {std::bit_cast<uint16_t>(static_cast<_Float16>(x))};
}
inline __half __float2half_rn(float x) { return __float2half(x); }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
inline __half2 __float22half2_rn(float2 x) { return __floats2half2_rn(x.x, x.y); }
inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
inline uint16_t __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }

#endif  // FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_FP16_H_
