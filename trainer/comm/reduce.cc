#include "trainer/comm/reduce.h"

#include <immintrin.h>

#include <algorithm>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

void SumFloats(std::span<const std::byte* const> from, int64_t n, std::byte* to) {
  constexpr int64_t kBlock = 2048;  // 8 KB of sums: they and a block of each input stay in L1.
  float sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const float* first = reinterpret_cast<const float*>(from[0]) + begin;
    for (int64_t i = 0; i < count; ++i) sum[i] = first[i];
    for (size_t r = 1; r < from.size(); ++r) {
      const float* in = reinterpret_cast<const float*>(from[r]) + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] += in[i];
    }
    float* out = reinterpret_cast<float*>(to) + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = sum[i];
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

// Sums of 16-bit numbers, 16 at a time. gcc 12 would round and pack them one by one, and widen fp16
// one by one. bf16 is taken apart into even and odd places, which take a shift or a mask each way;
// fp16 into the first and the last eight.
template <typename T>
struct Sixteen;

template <>
struct Sixteen<BFloat16> {
  __m256 even, odd;

  explicit Sixteen(const BFloat16* x) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(bits, upper));
  }
  void Add(const Sixteen& more) {
    even = _mm256_add_ps(even, more.even);
    odd = _mm256_add_ps(odd, more.odd);
  }
  // BFloat16(x) in the upper half of each lane, the lower is rubbish. A NaN has to be quiet, with 0
  // in the lower half, as what is added up of bf16 is: nothing is carried out of it then.
  static __m256i Rounded(__m256 x) {
    const __m256i u = _mm256_castps_si256(x);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), last);
  }
  __m256i Round() const {
    return _mm256_blend_epi16(_mm256_srli_epi32(Rounded(even), 16), Rounded(odd), 0xaa);
  }
  __m256 First() const { return Mixed<0x20>(); }
  __m256 Last() const { return Mixed<0x31>(); }
  template <int kLanes>
  __m256 Mixed() const {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd),
                                  kLanes);
  }
};

template <>
struct Sixteen<Float16> {
  __m256 first, last;

  explicit Sixteen(const Float16* x) : first(Eight(x)), last(Eight(x + 8)) {}
  static __m256 Eight(const Float16* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
  void Add(const Sixteen& more) {
    first = _mm256_add_ps(first, more.first);
    last = _mm256_add_ps(last, more.last);
  }
  __m256i Round() const {
    return _mm256_set_m128i(_mm256_cvtps_ph(last, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT));
  }
  __m256 First() const { return first; }
  __m256 Last() const { return last; }
};

template <typename T>
void StoreSum(const Sixteen<T>& sum, T* out, bool) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), sum.Round());
}

template <typename T>
void StoreSum(const Sixteen<T>& sum, float* out, bool around) {
  if (around) {
    _mm256_stream_ps(out, sum.First());
    _mm256_stream_ps(out + 8, sum.Last());
  } else {
    _mm256_storeu_ps(out, sum.First());
    _mm256_storeu_ps(out + 8, sum.Last());
  }
}

// kRanks 0: any number but 1.
template <size_t kRanks, typename T, typename Result>
void SumSixteens(std::span<const std::byte* const> from, int64_t n, bool around, Result* out) {
  const size_t ranks = kRanks > 0 ? kRanks : from.size();
  for (int64_t i = 0; i < n; i += 16) {
    const auto of = [&](size_t r) { return Sixteen<T>(reinterpret_cast<const T*>(from[r]) + i); };
    Sixteen<T> sum = of(0);
    for (size_t r = 1; r < ranks; ++r) sum.Add(of(r));
    StoreSum(sum, out + i, around);
  }
}

template <typename T, typename Result>
void SumHalves(std::span<const std::byte* const> from, int64_t n, bool around, std::byte* to) {
  Result* const out = reinterpret_cast<Result*>(to);
  const int64_t whole = from.size() > 1 ? n / 16 * 16 : 0;  // One rank's numbers are not added up.
  around = around && reinterpret_cast<uintptr_t>(to) % sizeof(__m256) == 0;
  from.size() == 2 ? SumSixteens<2, T>(from, whole, around, out)
                   : SumSixteens<0, T>(from, whole, around, out);
  if (around) _mm_sfence();
  for (int64_t i = whole; i < n; ++i) {
    const auto of = [&](size_t r) {
      return static_cast<float>(reinterpret_cast<const T*>(from[r])[i]);
    };
    float sum = of(0);
    for (size_t r = 1; r < from.size(); ++r) sum += of(r);
    out[i] = Result(sum);
  }
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
                std::byte* out, bool around) {
  const bool exact = result == DType::kFloat32;  // The sum as it is.
  FSDP_CHECK(exact || result == dtype) << Name(result) << " of " << Name(dtype);
  switch (dtype) {
    case DType::kFloat32:
      return from.size() == 2 ? SumTwoFloats(from[0], from[1], n, out) : SumFloats(from, n, out);
    case DType::kBFloat16:
      return exact ? SumHalves<BFloat16, float>(from, n, around, out)
                   : SumHalves<BFloat16, BFloat16>(from, n, around, out);
    case DType::kFloat16:
      return exact ? SumHalves<Float16, float>(from, n, around, out)
                   : SumHalves<Float16, Float16>(from, n, around, out);
    default:
      FSDP_CHECK(false) << "cannot sum " << Name(dtype);
  }
}

}  // namespace fsdp
