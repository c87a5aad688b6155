#include "trainer/ops/cpu/floats.h"

#include "trainer/ops/cpu/convert.h"

namespace fsdp {

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

}  // namespace fsdp
