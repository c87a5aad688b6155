// CUDA C++ for g++, in place of the toolkit's header of this name: only the parts that the
// project's .cu files use. ../simt.h runs it. Other parts do not compile.
#ifndef FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_RUNTIME_H_
#define FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_RUNTIME_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda_runtime_api.h"
#include "tests/emulated/simt.h"
#include "vector_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Each thread of the host runs one block at a time. ../shared_arrays.h fills them for each block.
#define __shared__ static thread_local __attribute__((tls_model("initial-exec")))

// --- a block's threads ---

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  fsdp::EmulateBarrier(where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { fsdp::EmulateSyncWarp(mask); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = fsdp::EmulatedLane();
  return fsdp::EmulateShuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
// A lane that would read beyond the end of its part of the warp, or before its begin, gets its own
// value.
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const int lane = fsdp::EmulatedLane(), from = lane ^ lane_mask;
  return fsdp::EmulateShuffle(mask, value, from <= (lane | (width - 1)) ? from : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = fsdp::EmulatedLane(), from = lane - static_cast<int>(delta);
  return fsdp::EmulateShuffle(mask, value, from >= (lane & ~(width - 1)) ? from : lane);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = fsdp::EmulatedLane(), from = lane + static_cast<int>(delta);
  return fsdp::EmulateShuffle(mask, value, from <= (lane | (width - 1)) ? from : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return fsdp::EmulateBallot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// --- memory ---

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, const T& value) {
  *p = value;
}

// --- arithmetic ---

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

// The rounded value, which the compiler cannot fuse with anything.
inline float EmulateRounded(float x) {
  asm volatile("" : "+x"(x));
  return x;
}
inline float __fadd_rn(float a, float b) { return EmulateRounded(a + b); }
inline float __fsub_rn(float a, float b) { return EmulateRounded(a - b); }
inline float __fmul_rn(float a, float b) { return EmulateRounded(a * b); }
inline float __fdiv_rn(float a, float b) { return EmulateRounded(a / b); }
inline float __fsqrt_rn(float x) { return EmulateRounded(std::sqrt(x)); }
inline float __frcp_rn(float x) { return EmulateRounded(1.0f / x); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
// Through a rounded product, as on a GPU, so the error grows with |x|. These are macros because
// glibc declares functions of these names.
inline float EmulateExp(float x) { return std::exp2(EmulateRounded(x * 1.4426950408889634f)); }
inline float EmulateLog(float x) { return EmulateRounded(std::log2(x)) * 0.6931471805599453f; }
#define __expf(x) EmulateExp(x)
#define __logf(x) EmulateLog(x)
#define __log2f(x) std::log2(static_cast<float>(x))

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} * b) >> 32);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

#endif  // FSDP_TRAIN_TESTS_EMULATED_INCLUDE_CUDA_RUNTIME_H_
