#include "trainer/ops/cpu/floats.h"

#include <utility>

#include "trainer/ops/cpu/convert.h"

namespace fsdp {
namespace {

// Buffers that nobody on this thread uses now, seldom more than two.
std::vector<std::vector<float>>& Spare() {
  static thread_local std::vector<std::vector<float>> spare;
  return spare;
}

}  // namespace

void ConvertToFloats(const ConstView& x, int64_t begin, int64_t n, float* buffer) {
  if (x.dtype == DType::kBFloat16) return Convert(x.As<BFloat16>() + begin, n, buffer);
  Convert(x.As<Float16>() + begin, n, buffer);
}

void ConvertFromFloats(const float* from, int64_t n, const View& y, int64_t begin) {
  if (y.dtype == DType::kBFloat16) return Convert(from, n, y.As<BFloat16>() + begin);
  Convert(from, n, y.As<Float16>() + begin);
}

void AddFloats(const float* from, int64_t n, const View& y, int64_t begin) {
  FloatPiece buffer;
  ForEachPiece(y.dtype, 0, n, [&](int64_t first, int64_t count) {
    float* to = FloatsToChange(y, begin + first, count, buffer);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] += from[first + i];
    WriteFloats(to, count, y, begin + first);
  });
}

RowBuffers::RowBuffers(DType dtype, int rows, int64_t cols)
    : cols_(dtype == DType::kFloat32 ? 0 : cols) {
  if (cols_ == 0) return;
  if (!Spare().empty()) {
    floats_ = std::move(Spare().back());
    Spare().pop_back();
  }
  const auto size = static_cast<size_t>(rows * cols_);
  if (floats_.size() < size) floats_.resize(size);
}

RowBuffers::~RowBuffers() {
  if (cols_ > 0) Spare().push_back(std::move(floats_));
}

}  // namespace fsdp
