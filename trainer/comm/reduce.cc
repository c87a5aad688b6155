#include "trainer/comm/reduce.h"

#include <immintrin.h>

#include <algorithm>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

template <typename T, typename Result>
void Sum(std::span<const std::byte* const> from, int64_t n, std::byte* to) {
  constexpr int64_t kBlock = 2048;  // 8 KB of sums: they and a block of each input stay in L1.
  float sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const T* first = reinterpret_cast<const T*>(from[0]) + begin;
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<float>(first[i]);
    for (size_t r = 1; r < from.size(); ++r) {
      const T* in = reinterpret_cast<const T*>(from[r]) + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<float>(in[i]);
    }
    Result* out = reinterpret_cast<Result*>(to) + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = Result(sum[i]);
  }
}

// Without the block of sums where there is nothing to keep: 2 ranks are the common case.
void SumTwoFloats(const std::byte* a, const std::byte* b, int64_t n, std::byte* to) {
  const float* x = reinterpret_cast<const float*>(a);
  const float* y = reinterpret_cast<const float*>(b);
  float* out = reinterpret_cast<float*>(to);
#pragma GCC ivdep  // Where `out` is x or y, it is so element by element.
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}

}  // namespace

void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to == from) return;
  using Vector = int64_t __attribute__((vector_size(32), aligned(1), may_alias));
  const int64_t vectors = bytes / static_cast<int64_t>(sizeof(Vector));
  auto* __restrict out = reinterpret_cast<Vector*>(to);
  const auto* __restrict in = reinterpret_cast<const Vector*>(from);
  for (int64_t i = 0; i < vectors; ++i) out[i] = in[i];
  for (int64_t i = vectors * sizeof(Vector); i < bytes; ++i) to[i] = from[i];
}

void StreamBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to == from) return;
  constexpr int64_t kVector = sizeof(__m256i);
  const int64_t head = std::min(
      bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % static_cast<size_t>(kVector)));
  CopyBytes(to, from, head);
  int64_t i = head;
  for (; i + kVector <= bytes; i += kVector) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
  _mm_sfence();  // They are not ordered by themselves.
  CopyBytes(to + i, from + i, bytes - i);
}

void SumInOrder(DType dtype, std::span<const std::byte* const> from, int64_t n, DType result,
                std::byte* out) {
  const bool exact = result == DType::kFloat32;  // The sum as it is.
  FSDP_CHECK(exact || result == dtype) << Name(result) << " of " << Name(dtype);
  switch (dtype) {
    case DType::kFloat32:
      return from.size() == 2 ? SumTwoFloats(from[0], from[1], n, out)
                              : Sum<float, float>(from, n, out);
    case DType::kBFloat16:
      return exact ? Sum<BFloat16, float>(from, n, out) : Sum<BFloat16, BFloat16>(from, n, out);
    case DType::kFloat16:
      return exact ? Sum<Float16, float>(from, n, out) : Sum<Float16, Float16>(from, n, out);
    default:
      FSDP_CHECK(false) << "cannot sum " << Name(dtype);
  }
}

}  // namespace fsdp
