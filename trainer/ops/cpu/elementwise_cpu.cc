#include "trainer/ops/cpu/elementwise_cpu.h"

#include <algorithm>
#include <cstring>

#include "trainer/ops/cpu/floats.h"

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

void AddCpu(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y) {
  pool.ParallelFor(y.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    FloatPiece first_buffer, second_buffer, sum_buffer;
    ForEachPiece(y.dtype, begin, end, [&](int64_t at, int64_t n) {
      const float* first = ReadFloats(a, at, n, first_buffer);
      const float* second = ReadFloats(b, at, n, second_buffer);
      float* sum = FloatsToWrite(y, at, sum_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] = first[i] + second[i];
      WriteFloats(sum, n, y, at);
    });
  });
}

void ScaleCpu(ThreadPool& pool, float factor, const View& y) {
  pool.ParallelFor(y.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    FloatPiece from_buffer, to_buffer;
    ForEachPiece(y.dtype, begin, end, [&](int64_t at, int64_t n) {
      const float* from = ReadFloats(y, at, n, from_buffer);
      float* to = FloatsToWrite(y, at, to_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = factor * from[i];
      WriteFloats(to, n, y, at);
    });
  });
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
