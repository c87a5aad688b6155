// Instructions that CUDA C++ cannot express (PTX ISA 9.0; sm_80 and up). Where no nvcc compiles
// them, tests/emulated defines them.
// Tests: tests/emulated/instructions_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_PTX_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_PTX_H_

#include <bit>

#include "trainer/ops/cuda/launch.h"

namespace fsdp {

#ifdef __CUDACC__

// The block's dynamic shared memory, aligned to 16 bytes.
template <typename T>
__device__ inline T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  return reinterpret_cast<T*>(dynamic_shared);
}

// d += a b by one warp: d is 16 x 8, a 16 x 16, b 16 x 8 (mma.sync.m16n8k16). Lane 4 g + t holds
//   a[0]: row g, columns 2t, 2t + 1     a[1]: row g + 8     a[2], a[3]: the same, columns + 8
//   b[0]: column g, rows 2t, 2t + 1     b[1]: rows + 8
//   d[0], d[1]: row g, columns 2t, 2t + 1     d[2], d[3]: row g + 8
// Each word has two elements, the first in the low half. T: the type of a and b.
template <typename T>
__device__ inline void Mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// Two floats as a word of two elements, the first in the low half. Each is rounded to nearest, ties
// to even.
template <typename T>
__device__ inline uint32_t PackPair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// Loads four 8 x 8 matrices of two-byte elements from shared memory (ldmatrix.x4). Lane i gives the
// begin of row i % 8 of matrix i / 8, a multiple of 16 bytes. Lane 4 g + t gets in r[m] elements 2t
// and 2t + 1 of row g of matrix m. Transposed: elements 2t and 2t + 1 of column g.
__device__ inline void LoadMatrices(uint32_t (&r)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ inline void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// Copies 16 bytes from global to shared memory, both aligned to 16, while the thread goes on. Only
// the first `bytes` (0 to 16) are copied; the others become zero. WaitForCopies<n>() returns when
// all but this thread's newest n groups are done. A barrier then shows them to other threads.
__device__ inline void CopyAsync(void* shared, const void* global, int bytes = 16) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global), "r"(bytes)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

#else

template <typename T>
T* DynamicShared() {
  return reinterpret_cast<T*>(EmulatedDynamicShared());
}
template <typename T>
void Mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  EmulateMma(d, a, b, std::is_same_v<T, __nv_bfloat16>);
}
template <typename T>
uint32_t PackPair(float low, float high) {
  const Pack<T, 2> pair{{FromFloat<T>(low), FromFloat<T>(high)}};
  return std::bit_cast<uint32_t>(pair);
}
inline void LoadMatrices(uint32_t (&r)[4], const void* row) {
  EmulateLoadMatrices(r, row, /*transposed=*/false);
}
inline void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  EmulateLoadMatrices(r, row, /*transposed=*/true);
}
inline void CopyAsync(void* shared, const void* global, int bytes = 16) {
  EmulateCopyAsync(shared, global, bytes);
}
inline void CommitCopies() { EmulateCommitCopies(); }
template <int n>
void WaitForCopies() {
  EmulateWaitForCopies(n);
}

#endif

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_PTX_H_
