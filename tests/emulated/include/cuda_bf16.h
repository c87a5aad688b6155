// bf16 in place of the toolkit's header: conversions, and no arithmetic.
#ifndef FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_BF16_H_
#define FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_BF16_H_

#include <bit>
#include <cstdint>

#include "vector_types.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
// Rounds to nearest, ties to even; any NaN becomes 0x7fff.
inline __nv_bfloat16 __float2bfloat16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16(x), __float2bfloat16(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) { return __floats2bfloat162_rn(x.x, x.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 x) {
  return {__bfloat162float(x.x), __bfloat162float(x.y)};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }

#endif  // FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_BF16_H_
