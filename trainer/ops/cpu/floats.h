// Elements of fp32, bf16 or fp16 as floats, and floats as such elements, rounded to nearest: with
// these a kernel of floats serves all three. Not an op itself. Elements that are floats are used
// where they lie; others pass through a buffer of the caller's, which is not looked at for floats.
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

// Where the values of elements of y from `begin` on are to be put, for WriteFloats().
inline float* FloatsToWrite(const View& y, int64_t begin, float* buffer) {
  return y.dtype == DType::kFloat32 ? y.As<float>() + begin : buffer;
}

// The same with the elements' values there, to be changed.
inline float* FloatsToChange(const View& y, int64_t begin, int64_t n, float* buffer) {
  if (y.dtype != DType::kFloat32) ConvertToFloats(y, begin, n, buffer);
  return FloatsToWrite(y, begin, buffer);
}

// What has been put there becomes elements [begin, begin + n) of y.
inline void WriteFloats(const float* from, int64_t n, const View& y, int64_t begin) {
  if (y.dtype != DType::kFloat32) ConvertFromFloats(from, n, y, begin);
}

// y[begin + i] += from[i], i < n, each rounded once: of a sum that is complete.
void AddFloats(const float* from, int64_t n, const View& y, int64_t begin);

inline constexpr int64_t kFloatPiece = 512;
using FloatPiece = float[kFloatPiece];  // A buffer: stays in a first-level cache.

// Calls body(first, n) for pieces of [begin, end) that a FloatPiece holds, in order; for floats,
// which need none, once for all.
template <typename Body>
void ForEachPiece(DType dtype, int64_t begin, int64_t end, const Body& body) {
  const int64_t most = dtype == DType::kFloat32 ? end - begin : kFloatPiece;
  for (; begin < end; begin += most) body(begin, std::min(most, end - begin));
}

// Buffers for whole rows, which may be of any length; no memory for floats. A thread keeps what it
// once had: after a step or two nothing is allocated any more.
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
