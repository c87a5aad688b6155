#include "trainer/ops/feature_vectors.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/feature_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// Rows of `cols` elements, bit for bit, at their places in rows of `from` and `to`.
void CopyColumns(const ConstView& from, int64_t from_col, const View& to, int64_t to_col,
                 int64_t cols, int64_t begin, int64_t end) {
  const int64_t size = SizeOf(to.dtype), from_cols = from.shape[1], to_cols = to.shape[1];
  for (int64_t row = begin; row < end; ++row) {
    std::memcpy(to.data + (row * to_cols + to_col) * size,
                from.data + (row * from_cols + from_col) * size, static_cast<size_t>(cols * size));
  }
}

template <typename T>
void SwapSamples(ThreadPool& pool, const ConstView& x, int64_t samples, const View& y) {
  const int64_t n = x.shape[0] / samples, cols = x.shape[1];
  constexpr int64_t kTile = 16;
  pool.ParallelFor(samples, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const T* const from = reinterpret_cast<const T*>(x.data) + s * n * cols;
      T* const to = reinterpret_cast<T*>(y.data) + s * n * cols;
      for (int64_t col = 0; col < cols; col += kTile) {
        const int64_t last = std::min(cols, col + kTile);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = col; j < last; ++j) to[j * n + i] = from[i * cols + j];
        }
      }
    }
  });
}

constexpr int64_t kDown = 4, kAcross = 16;  // A tile of sums, which stays in registers.
int64_t Padded(int64_t n) { return (n + kAcross - 1) / kAcross * kAcross; }

// sums[i][c] = sum over k in order of a[k, row + i] b[k, col + c], for rows of a_cols and b_cols.
void TileOfSums(const float* a, int64_t a_cols, const float* b, int64_t b_cols, int64_t terms,
                float (&sums)[kDown][kAcross]) {
  float sum[kDown][kAcross] = {};
  for (int64_t k = 0; k < terms; ++k) {
    const float *const left = a + k * a_cols, *const right = b + k * b_cols;
    for (int64_t i = 0; i < kDown; ++i) {
#pragma omp simd
      for (int64_t c = 0; c < kAcross; ++c) sum[i][c] += left[i] * right[c];
    }
  }
  std::memcpy(sums, sum, sizeof(sum));
}

// The memory in which a thread computes a sample. The thread keeps it.
struct Scratch {
  std::vector<float> matrix, other, row;
};
Scratch& OfThread() {
  static thread_local Scratch scratch;
  return scratch;
}

// Elements [begin, begin + n) as floats.
const float* Floats(const ConstView& x, int64_t begin, int64_t n, std::vector<float>& buffer) {
  if (x.dtype != DType::kFloat32) buffer.resize(static_cast<size_t>(n));
  return ReadFloats(x, begin, n, buffer.data());
}

void JoinColumnsCpu(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y) {
  pool.ParallelFor(y.shape[0], 1, [&](int64_t begin, int64_t end) {
    CopyColumns(a, 0, y, 0, a.shape[1], begin, end);
    CopyColumns(b, 0, y, a.shape[1], b.shape[1], begin, end);
  });
}

void SplitColumnsCpu(ThreadPool& pool, const ConstView& y, const View& a, const View& b) {
  pool.ParallelFor(y.shape[0], 1, [&](int64_t begin, int64_t end) {
    CopyColumns(y, 0, a, 0, a.shape[1], begin, end);
    CopyColumns(y, a.shape[1], b, 0, b.shape[1], begin, end);
  });
}

void SwapVectorsCpu(ThreadPool& pool, const ConstView& x, int64_t samples, const View& y) {
  if (SizeOf(x.dtype) == 4) {
    SwapSamples<uint32_t>(pool, x, samples, y);
  } else {
    SwapSamples<uint16_t>(pool, x, samples, y);
  }
}

void PairDotsForwardCpu(ThreadPool& pool, const ConstView& x, float scale, const View& y) {
  const int64_t samples = y.shape[0], pairs = y.shape[1], cols = x.shape[1];
  const int64_t n = x.shape[0] / samples, wide = Padded(n);
  pool.ParallelFor(samples, 1, [&](int64_t begin, int64_t end) {
    Scratch& scratch = OfThread();
    scratch.matrix.assign(static_cast<size_t>(cols * wide), 0.0f);
    scratch.row.resize(static_cast<size_t>(pairs));
    float sums[kDown][kAcross];
    for (int64_t s = begin; s < end; ++s) {
      const float* const in = Floats(x, s * n * cols, n * cols, scratch.other);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k < cols; ++k) scratch.matrix[k * wide + i] = in[i * cols + k];
      }
      float* const out = FloatsToWrite(y, s * pairs, scratch.row.data());
      for (int64_t i = 0; i < n; i += kDown) {
        const int64_t last = std::min(n, i + kDown);
        for (int64_t j = 0; j < last - 1; j += kAcross) {
          TileOfSums(scratch.matrix.data() + i, wide, scratch.matrix.data() + j, wide, cols, sums);
          for (int64_t row = std::max<int64_t>(i, 1); row < last; ++row) {
            float* const to = out + row * (row - 1) / 2 + j;
            for (int64_t c = 0; c < std::min(kAcross, row - j); ++c) {
              to[c] = scale * sums[row - i][c];
            }
          }
        }
      }
      WriteFloats(out, pairs, y, s * pairs);
    }
  });
}

void PairDotsBackwardCpu(ThreadPool& pool, const ConstView& x, float scale, const ConstView& dy,
                         const View& dx) {
  const int64_t samples = dy.shape[0], pairs = dy.shape[1], cols = x.shape[1];
  const int64_t n = x.shape[0] / samples, wide = Padded(n), across = Padded(cols);
  pool.ParallelFor(samples, 1, [&](int64_t begin, int64_t end) {
    Scratch& scratch = OfThread();
    // Gradients of pairs, a symmetric matrix, and the vectors, both in padded rows.
    scratch.matrix.assign(static_cast<size_t>(n * (wide + across)), 0.0f);
    float *const of_pairs = scratch.matrix.data(), *const vectors = of_pairs + n * wide;
    float sums[kDown][kAcross];
    scratch.other.resize(static_cast<size_t>(n * cols));
    for (int64_t s = begin; s < end; ++s) {
      const float* const in = Floats(x, s * n * cols, n * cols, scratch.row);
      for (int64_t i = 0; i < n; ++i) std::copy_n(in + i * cols, cols, vectors + i * across);
      const float* from = Floats(dy, s * pairs, pairs, scratch.row);
      for (int64_t i = 1; i < n; ++i) {
        for (int64_t j = 0; j < i; ++j) {
          of_pairs[i * wide + j] = of_pairs[j * wide + i] = scale * *from++;
        }
      }
      float* const out = FloatsToWrite(dx, s * n * cols, scratch.other.data());
      for (int64_t i = 0; i < n; i += kDown) {
        for (int64_t col = 0; col < cols; col += kAcross) {
          TileOfSums(of_pairs + i, wide, vectors + col, across, n, sums);
          for (int64_t row = i; row < std::min(n, i + kDown); ++row) {
            std::copy_n(sums[row - i], std::min(kAcross, cols - col), out + row * cols + col);
          }
        }
      }
      WriteFloats(out, n * cols, dx, s * n * cols);
    }
  });
}

void MultiplyForwardCpu(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y) {
  pool.ParallelFor(y.NumElements(), kFloatPiece, [&](int64_t begin, int64_t end) {
    FloatPiece a_buffer, b_buffer, out_buffer;
    ForEachPiece(y.dtype, begin, end, [&](int64_t at, int64_t n) {
      const float *const left = ReadFloats(a, at, n, a_buffer), *const right =
                                                                    ReadFloats(b, at, n, b_buffer);
      float* const out = FloatsToWrite(y, at, out_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = left[i] * right[i];
      WriteFloats(out, n, y, at);
    });
  });
}

void MultiplyBackwardCpu(ThreadPool& pool, const ConstView& a, const ConstView& b,
                         const ConstView& dy, const View& da, const View& db) {
  pool.ParallelFor(dy.NumElements(), kFloatPiece, [&](int64_t begin, int64_t end) {
    FloatPiece a_buffer, b_buffer, d_buffer, out_buffer, other_buffer;
    ForEachPiece(dy.dtype, begin, end, [&](int64_t at, int64_t n) {
      const float *const left = ReadFloats(a, at, n, a_buffer),
                         *const right = ReadFloats(b, at, n, b_buffer),
                         *const d = ReadFloats(dy, at, n, d_buffer);
      float *const to_left = FloatsToWrite(da, at, out_buffer), *const to_right = FloatsToWrite(
                                                                    db, at, other_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        to_left[i] = d[i] * right[i];
        to_right[i] = d[i] * left[i];
      }
      WriteFloats(to_left, n, da, at);
      WriteFloats(to_right, n, db, at);
    });
  });
}

double BytesOf(std::initializer_list<ConstView> views) {
  double bytes = 0;
  for (const ConstView& view : views) bytes += static_cast<double>(view.bytes());
  return bytes;
}

// Checks two matrices that are the columns of y.
void CheckColumns(const Arguments& args, const ConstView& a, const ConstView& b,
                  const ConstView& y) {
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckRank("y", y, y.dtype, 2);
  args.CheckRank("a", a, y.dtype, 2);
  args.Check("a", a, y.dtype, {y.shape[0], a.shape[1]});
  args.Check("b", b, y.dtype, {y.shape[0], y.shape[1] - a.shape[1]});
  args.CheckDisjoint("y", y, "a", a);
  args.CheckDisjoint("y", y, "b", b);
}

// Vectors of a sample. `y`: their result, a row for each sample.
int64_t CheckPairs(const Arguments& args, const ConstView& x, const char* name,
                   const ConstView& y) {
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  args.CheckRank(name, y, x.dtype, 2);
  const int64_t samples = y.shape[0], rows = x.shape[0];
  if (samples < 1 || rows % samples != 0 || rows / samples < 2) {
    args.Fail("x has " + std::to_string(rows) + " rows, for pairs of " + std::to_string(samples) +
              " samples");
  }
  const int64_t n = rows / samples;
  args.Check(name, y, x.dtype, {samples, n * (n - 1) / 2});
  args.CheckDisjoint(name, y, "x", x);
  return n;
}

}  // namespace

void JoinColumns(Stream& stream, ConstView a, ConstView b, View y) {
  constexpr const char* kOp = "join_columns";
  CheckColumns(Arguments(kOp), a, b, y);
  const Cost cost{.bytes_read = BytesOf({a, b}), .bytes_written = BytesOf({y})};
  stream.Enqueue({kOp,
                  {a, b},
                  {y},
                  {{cost, OnGpu{.launches = 2}}},
                  {OnCpu(JoinColumnsCpu, a, b, y), OnCuda(JoinColumnsCuda, a, b, y)}});
}

void SplitColumns(Stream& stream, ConstView y, View a, View b) {
  constexpr const char* kOp = "split_columns";
  const Arguments args(kOp);
  CheckColumns(args, a, b, y);
  args.CheckDisjoint("a", a, "b", b);
  const Cost cost{.bytes_read = BytesOf({y}), .bytes_written = BytesOf({a, b})};
  stream.Enqueue({kOp,
                  {y},
                  {a, b},
                  {{cost, OnGpu{.launches = 2}}},
                  {OnCpu(SplitColumnsCpu, y, a, b), OnCuda(SplitColumnsCuda, y, a, b)}});
}

void SwapVectors(Stream& stream, ConstView x, int64_t samples, View y) {
  constexpr const char* kOp = "swap_vectors";
  const Arguments args(kOp);
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  if (samples < 1 || x.shape[0] == 0 || x.shape[0] % samples != 0) {
    args.Fail("x has " + std::to_string(x.shape[0]) + " rows, for " + std::to_string(samples) +
              " samples");
  }
  args.Check("y", y, x.dtype, {samples * x.shape[1], x.shape[0] / samples});
  args.CheckDisjoint("y", y, "x", x);
  const Cost cost{.bytes_read = BytesOf({x}), .bytes_written = BytesOf({y})};
  stream.Enqueue({kOp,
                  {x},
                  {y},
                  {cost},
                  {OnCpu(SwapVectorsCpu, x, samples, y), OnCuda(SwapVectorsCuda, x, samples, y)}});
}

void PairDotsForward(Stream& stream, ConstView x, float scale, View y) {
  constexpr const char* kOp = "pair_dots_forward";
  CheckPairs(Arguments(kOp), x, "y", y);
  const Cost cost{
      .flops = 2 * static_cast<double>(y.NumElements()) * static_cast<double>(x.shape[1]),
      .bytes_read = BytesOf({x}),
      .bytes_written = BytesOf({y})};
  stream.Enqueue(
      {kOp,
       {x},
       {y},
       {cost},
       {OnCpu(PairDotsForwardCpu, x, scale, y), OnCuda(PairDotsForwardCuda, x, scale, y)}});
}

void PairDotsBackward(Stream& stream, ConstView x, float scale, ConstView dy, View dx) {
  constexpr const char* kOp = "pair_dots_backward";
  const Arguments args(kOp);
  CheckPairs(args, x, "dy", dy);
  args.Check("dx", dx, x.dtype, x.shape);
  args.CheckDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "dy", dy);
  const Cost cost{
      .flops = 4 * static_cast<double>(dy.NumElements()) * static_cast<double>(x.shape[1]),
      .bytes_read = BytesOf({x, dy}),
      .bytes_written = BytesOf({dx})};
  stream.Enqueue({kOp,
                  {x, dy},
                  {dx},
                  {cost},
                  {OnCpu(PairDotsBackwardCpu, x, scale, dy, dx),
                   OnCuda(PairDotsBackwardCuda, x, scale, dy, dx)}});
}

void MultiplyForward(Stream& stream, ConstView a, ConstView b, View y) {
  constexpr const char* kOp = "multiply_forward";
  const Arguments args(kOp);
  args.CheckDType("y", y.dtype, kFloatDTypes);
  const int64_t n = y.NumElements();
  args.CheckElements("y", y, y.dtype, n);
  for (const auto& [name, view] : {std::pair("a", a), {"b", b}}) {
    args.CheckElements(name, view, y.dtype, n);
    args.CheckDisjoint("y", y, name, view);
  }
  const Cost cost{.flops = static_cast<double>(n),
                  .bytes_read = BytesOf({a, b}),
                  .bytes_written = BytesOf({y})};
  stream.Enqueue({kOp,
                  {a, b},
                  {y},
                  {cost},
                  {OnCpu(MultiplyForwardCpu, a, b, y), OnCuda(MultiplyForwardCuda, a, b, y)}});
}

void MultiplyBackward(Stream& stream, ConstView a, ConstView b, ConstView dy, View da, View db) {
  constexpr const char* kOp = "multiply_backward";
  const Arguments args(kOp);
  args.CheckDType("dy", dy.dtype, kFloatDTypes);
  const int64_t n = dy.NumElements();
  args.CheckElements("dy", dy, dy.dtype, n);
  for (const auto& [name, view] : {std::pair("a", a), {"b", b}}) {
    args.CheckElements(name, view, dy.dtype, n);
  }
  for (const auto& [result, out] : {std::pair("da", da), {"db", db}}) {
    args.CheckElements(result, out, dy.dtype, n);
    for (const auto& [name, view] : {std::pair("a", a), {"b", b}, {"dy", dy}}) {
      args.CheckDisjoint(result, out, name, view);
    }
  }
  args.CheckDisjoint("da", da, "db", db);
  const Cost cost{.flops = 2 * static_cast<double>(n),
                  .bytes_read = BytesOf({a, b, dy}),
                  .bytes_written = BytesOf({da, db})};
  stream.Enqueue({kOp,
                  {a, b, dy},
                  {da, db},
                  {cost},
                  {OnCpu(MultiplyBackwardCpu, a, b, dy, da, db),
                   OnCuda(MultiplyBackwardCuda, a, b, dy, da, db)}});
}

}  // namespace fsdp
