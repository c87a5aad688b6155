#include "trainer/ops/cpu/elementwise_cpu.h"

#include <algorithm>
#include <cstring>

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;  // Elements: at least a page a thread.

// glibc 2.36 turns to `rep movsb` above 4 KiB, which took 3 to 6 times as long for copies of 128
// to 256 KiB (Zen 3); below, it uses plain vector moves.
constexpr int64_t kCopyBytes = 4096;

template <typename Bits>
void FillBits(ThreadPool& pool, Bits bits, int64_t n, Bits* y) {
  pool.ParallelFor(n, kGrain,
                   [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, bits); });
}

}  // namespace

template <typename T>
void AddCpu(ThreadPool& pool, const T* a, const T* b, int64_t n, T* y) {
  pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      y[i] = T(static_cast<float>(a[i]) + static_cast<float>(b[i]));
    }
  });
}
template void AddCpu(ThreadPool&, const float*, const float*, int64_t, float*);
template void AddCpu(ThreadPool&, const BFloat16*, const BFloat16*, int64_t, BFloat16*);
template void AddCpu(ThreadPool&, const Float16*, const Float16*, int64_t, Float16*);

void FillCpu(ThreadPool& pool, uint32_t bits, int64_t n, uint32_t* y) {
  FillBits(pool, bits, n, y);
}

void FillCpu(ThreadPool& pool, uint16_t bits, int64_t n, uint16_t* y) {
  FillBits(pool, bits, n, y);
}

void CopyCpu(ThreadPool& pool, const std::byte* x, int64_t bytes, std::byte* y) {
  if (x == y) return;
  pool.ParallelFor(bytes, kCopyBytes, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kCopyBytes) {
      std::memcpy(y + at, x + at, std::min(kCopyBytes, end - at));
    }
  });
}

}  // namespace fsdp
