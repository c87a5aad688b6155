// Reads elements of fp32, bf16 or fp16 as floats, and writes floats as such elements, rounded to
// nearest, so that a kernel of floats serves all three. Not an op itself. fp32 elements are used
// where they lie; others pass through the caller's buffer, which fp32 does not use.
// Tests: tests/trainer/ops/cast_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_FLOATS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_FLOATS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trainer/core/view.h"

namespace fsdp {

// buffer[i] = x[begin + i] and y[begin + i] = from[i], i < n, where x and y are bf16 or fp16.
void ConvertToFloats(const ConstView& x, int64_t begin, int64_t n, float* buffer);
void ConvertFromFloats(const float* from, int64_t n, const View& y, int64_t begin);

// Elements [begin, begin + n) of x.
inline const float* ReadFloats(const ConstView& x, int64_t begin, int64_t n, float* buffer) {
  if (x.dtype == DType::kFloat32) return x.As<float>() + begin;
  ConvertToFloats(x, begin, n, buffer);
  return buffer;
}

// The place to write the values of y's elements from `begin` on, before WriteFloats().
inline float* FloatsToWrite(const View& y, int64_t begin, float* buffer) {
  return y.dtype == DType::kFloat32 ? y.As<float>() + begin : buffer;
}

// The same place, holding the elements' values, to be changed.
inline float* FloatsToChange(const View& y, int64_t begin, int64_t n, float* buffer) {
  if (y.dtype != DType::kFloat32) ConvertToFloats(y, begin, n, buffer);
  return FloatsToWrite(y, begin, buffer);
}

// Makes the values elements [begin, begin + n) of y.
inline void WriteFloats(const float* from, int64_t n, const View& y, int64_t begin) {
  if (y.dtype != DType::kFloat32) ConvertFromFloats(from, n, y, begin);
}

// y[begin + i] += from[i], i < n, where from[i] is a complete sum; each is rounded once.
void AddFloats(const float* from, int64_t n, const View& y, int64_t begin);

inline constexpr int64_t kFloatPiece = 512;
using FloatPiece = float[kFloatPiece];  // A buffer: stays in a first-level cache.

// Calls body(first, n) for pieces of [begin, end) that fit a FloatPiece, in order. fp32 needs no
// buffer and is one piece.
template <typename Body>
void ForEachPiece(DType dtype, int64_t begin, int64_t end, const Body& body) {
  const int64_t most = dtype == DType::kFloat32 ? end - begin : kFloatPiece;
  for (; begin < end; begin += most) body(begin, std::min(most, end - begin));
}

// Buffers for whole rows of any length; fp32 takes no memory. A thread keeps its memory: after a
// step or two nothing is allocated any more.
class RowBuffers {
 public:
  RowBuffers(DType dtype, int rows, int64_t cols);
  ~RowBuffers();
  RowBuffers(const RowBuffers&) = delete;
  RowBuffers& operator=(const RowBuffers&) = delete;

  float* operator[](int row) { return floats_.data() + row * cols_; }

 private:
  const int64_t cols_;
  std::vector<float> floats_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_FLOATS_H_
