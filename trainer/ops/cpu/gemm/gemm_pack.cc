#include "trainer/ops/cpu/gemm/gemm_pack.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

// Two bf16 of consecutive k where k is contiguous: moved as they are.
struct Pair {
  uint32_t bits;
};

__m256 Load8(const float* from) { return _mm256_loadu_ps(from); }
__m256 Load8(const Pair* from) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from)); }
__m256 Load8(const BFloat16* from) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
__m256 Load8(const Float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

void Move(const char* from, const float*, float* to) { std::memcpy(to, from, sizeof(*to)); }
void Move(const char* from, const Pair*, float* to) { std::memcpy(to, from, sizeof(*to)); }
template <typename Half>
void Move(const char* from, const Half*, float* to) {
  Half half;
  std::memcpy(&half, from, sizeof(half));
  *to = static_cast<float>(half);
}

// to[j ^ swap][i] = from[i][j], 8 x 8; `from_row` in bytes.
template <typename T>
void Transpose8(const char* from, int64_t from_row, int swap, float* to, int64_t to_row) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = Load8(reinterpret_cast<const T*>(from + i * from_row));
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    float* const row = to + (i ^ swap) * to_row;
    _mm256_storeu_ps(row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(row + 4 * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// One tile, to[l ^ swap][i] = x[i][l], i < width, for all l < k; rows of `to` are to_row apart. x's
// rows, `x_row` bytes apart, are contiguous.
template <typename T>
void PackTransposed(const char* x, int64_t x_row, int64_t width, int64_t k, int swap, float* to,
                    int64_t to_row) {
  constexpr int64_t kSize = sizeof(T);
  // Packs 8 rows at a time: the target stays in a first-level cache meanwhile.
  constexpr int64_t kStretch = 64, kLine = 64 / kSize;
  for (int64_t first = 0; first < k; first += kStretch) {
    const int64_t last = std::min(k, first + kStretch);
    int64_t i = 0;
    for (; i + 8 <= width; i += 8) {
      for (int64_t r = i; r < i + 8; ++r) {
        for (int64_t l = first; l < last; l += kLine) {
          __builtin_prefetch(x + r * x_row + (l + kStretch) * kSize);
        }
      }
      int64_t l = first;
      for (; l + 8 <= last; l += 8) {
        Transpose8<T>(x + i * x_row + l * kSize, x_row, swap, to + l * to_row + i, to_row);
      }
      for (; l < last; ++l) {
        for (int64_t r = i; r < i + 8; ++r) {
          Move(x + r * x_row + l * kSize, static_cast<const T*>(nullptr),
               to + (l ^ swap) * to_row + r);
        }
      }
    }
    for (; i < width; ++i) {
      for (int64_t l = first; l < last; ++l) {
        Move(x + i * x_row + l * kSize, static_cast<const T*>(nullptr),
             to + (l ^ swap) * to_row + i);
      }
    }
  }
}

// Tiles of `width` columns of x[k, cols], each [k, width], row l at l ^ swap; x's rows are
// contiguous.
template <typename T>
void PackRows(const GemmMatrix& x, int64_t k, int64_t cols, int64_t width, int swap, float* to,
              int64_t step) {
  constexpr int64_t kSize = sizeof(T);
  // So many columns at a time that the lines being written stay in a first-level cache.
  constexpr int64_t kCols = 512;
  const int64_t together = std::max<int64_t>(1, kCols / width) * width;
  for (int64_t first = 0; first < cols; first += together) {
    const int64_t last = std::min(cols, first + together);
    for (int64_t l = 0; l < k; ++l) {
      const char* row = x.At(l, 0);
      const char* ahead = x.At(std::min(k - 1, l + 8), 0);
      for (int64_t j = first; j < last; j += 64 / kSize) __builtin_prefetch(ahead + j * kSize);
      float* out = to + first / width * step + (l ^ swap) * width;
      int64_t j = first;
      if (width % 8 == 0) {
        for (; j + width <= last; j += width, out += step) {
          for (int64_t d = 0; d < width; d += 8) {
            _mm256_storeu_ps(out + d, Load8(reinterpret_cast<const T*>(row + (j + d) * kSize)));
          }
        }
      }
      for (; j < last; j += width, out += step) {
        const int64_t n = std::min(width, last - j);
        if constexpr (std::is_same_v<T, float>) {
          std::memcpy(out, row + j * kSize, n * kSize);
        } else {
          for (int64_t d = 0; d < n; ++d) {
            Move(row + (j + d) * kSize, static_cast<const T*>(nullptr), out + d);
          }
        }
      }
    }
  }
}

// The same of pairs: rows 2 l and 2 l + 1 become row l.
void PackRowPairs(const GemmMatrix& x, int64_t k, int64_t cols, int64_t width, float* to,
                  int64_t step) {
  constexpr int64_t kCols = 512;
  const int64_t together = std::max<int64_t>(1, kCols / width) * width;
  for (int64_t first = 0; first < cols; first += together) {
    const int64_t last = std::min(cols, first + together);
    for (int64_t l = 0; l < k; l += 2) {
      const auto* even = reinterpret_cast<const uint16_t*>(x.At(l, 0));
      const auto* odd = l + 1 < k ? reinterpret_cast<const uint16_t*>(x.At(l + 1, 0)) : nullptr;
      for (const int64_t row : {std::min(k - 1, l + 8), std::min(k - 1, l + 9)}) {
        for (int64_t j = first; j < last; j += 32) __builtin_prefetch(x.At(row, j));
      }
      float* out = to + first / width * step + l / 2 * width;
      int64_t j = first;
      if (width % 8 == 0 && odd != nullptr) {
        for (; j + width <= last; j += width, out += step) {
          for (int64_t d = 0; d < width; d += 8) {
            const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + j + d));
            const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + j + d));
            const auto at = reinterpret_cast<__m128i*>(out + d);
            _mm_storeu_si128(at, _mm_unpacklo_epi16(low, high));
            _mm_storeu_si128(at + 1, _mm_unpackhi_epi16(low, high));
          }
        }
      }
      for (; j < last; j += width, out += step) {
        for (int64_t d = 0; d < std::min(width, last - j); ++d) {
          const uint16_t pair[2] = {even[j + d], odd == nullptr ? uint16_t{0} : odd[j + d]};
          std::memcpy(out + d, pair, sizeof(pair));
        }
      }
    }
  }
}

// The step that an odd k goes on to, in each tile.
void ClearStep(int64_t at, int64_t cols, int64_t width, float* to, int64_t step) {
  for (int64_t j = 0; j < cols; j += width) {
    std::fill_n(to + j / width * step + at * width, width, 0.0f);
  }
}

template <typename T>
void PackAs(int swap, const GemmMatrix& x, int64_t k, int64_t cols, int64_t width, float* to) {
  const int64_t steps = swap == 0 ? k : (k + 1) / 2 * 2, step = GemmTileSteps(steps, width);
  if (steps > k) ClearStep(k - 1, cols, width, to, step);
  if (x.RowsAreContiguous()) return PackRows<T>(x, k, cols, width, swap, to, step);
  for (int64_t j = 0; j < cols; j += width) {
    PackTransposed<T>(x.At(0, j), x.col, std::min(width, cols - j), k, swap, to + j / width * step,
                      width);
  }
}

void PackPairs(const GemmMatrix& x, int64_t k, int64_t cols, int64_t width, float* to) {
  const int64_t whole = k / 2, step = GemmTileSteps((k + 1) / 2, width);
  if (x.RowsAreContiguous()) return PackRowPairs(x, k, cols, width, to, step);
  if (k % 2 != 0) {
    ClearStep(whole, cols, width, to, step);
    for (int64_t j = 0; j < cols; ++j) {
      std::memcpy(to + j / width * step + whole * width + j % width, x.At(k - 1, j), 2);
    }
  }
  for (int64_t j = 0; j < cols; j += width) {
    PackTransposed<Pair>(x.At(0, j), x.col, std::min(width, cols - j), whole, /*swap=*/0,
                         to + j / width * step, width);
  }
}

template <typename T>
void WidenAs(bool swap, const GemmMatrix& x, int64_t rows, int64_t k, float* to, int64_t next_row) {
  for (int64_t r = 0; r < rows; ++r, to += next_row) {
    const auto* const from = reinterpret_cast<const T*>(x.At(r, 0));
    int64_t l = 0;
    for (; l + 8 <= k; l += 8) {
      const __m256 eight = Load8(from + l);
      _mm256_storeu_ps(to + l, swap ? _mm256_permute_ps(eight, 0xb1) : eight);
    }
    if (swap && k % 2 != 0) to[k - 1] = 0;  // The last element's place is behind it.
    for (; l < k; ++l) to[swap ? l ^ 1 : l] = static_cast<float>(from[l]);
  }
}

}  // namespace

void GemmWiden(GemmForm form, const GemmMatrix& x, int64_t rows, int64_t k, float* to,
               int64_t next_row) {
  const bool swap = form == GemmForm::kSwappedFloats;
  switch (x.dtype) {
    case DType::kFloat32:
      return WidenAs<float>(swap, x, rows, k, to, next_row);
    case DType::kBFloat16:
      return WidenAs<BFloat16>(swap, x, rows, k, to, next_row);
    case DType::kFloat16:
      return WidenAs<Float16>(swap, x, rows, k, to, next_row);
    default:
      FSDP_CHECK(false) << "a factor of " << Name(x.dtype);
  }
}

void GemmPack(GemmForm form, const GemmMatrix& x, int64_t k, int64_t cols, int64_t width,
              float* to) {
  if (form == GemmForm::kPairs) return PackPairs(x, k, cols, width, to);
  const int swap = form == GemmForm::kSwappedFloats ? 1 : 0;
  switch (x.dtype) {
    case DType::kFloat32:
      return PackAs<float>(swap, x, k, cols, width, to);
    case DType::kBFloat16:
      return PackAs<BFloat16>(swap, x, k, cols, width, to);
    case DType::kFloat16:
      return PackAs<Float16>(swap, x, k, cols, width, to);
    default:
      FSDP_CHECK(false) << "a factor of " << Name(x.dtype);
  }
}

}  // namespace fsdp
