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

template <typename T>
void AddAs(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y) {
  const T *const first = a.As<T>(), *const second = b.As<T>();
  T* const sum = y.As<T>();
  pool.ParallelFor(y.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      sum[i] = T(static_cast<float>(first[i]) + static_cast<float>(second[i]));
    }
  });
}

}  // namespace

void AddCpu(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y) {
  switch (y.dtype) {
    case DType::kBFloat16:
      return AddAs<BFloat16>(pool, a, b, y);
    case DType::kFloat16:
      return AddAs<Float16>(pool, a, b, y);
    default:
      return AddAs<float>(pool, a, b, y);
  }
}

void FillCpu(ThreadPool& pool, uint32_t bits, const View& y) {
  const int64_t n = y.NumElements();
  if (SizeOf(y.dtype) == 4) return FillBits(pool, bits, n, y.As<uint32_t>());
  FillBits(pool, static_cast<uint16_t>(bits), n, y.As<uint16_t>());
}

void CopyCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  if (x.data == y.data) return;
  pool.ParallelFor(y.bytes(), kCopyBytes, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kCopyBytes) {
      std::memcpy(y.data + at, x.data + at, std::min(kCopyBytes, end - at));
    }
  });
}

}  // namespace fsdp
