// The rows of one head of a sample as floats, for kernels of floats: see floats.h. Rows in a buffer
// follow each other.
// Tests: tests/trainer/ops/attention_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_ROWS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_ROWS_H_

#include <cstdint>

#include "trainer/ops/cpu/attention/attention_kernels.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/heads.h"

namespace fsdp {

// The first element of a sample's head; heads count from heads.first.
template <typename AnyView>
int64_t HeadBegin(const BasicHeads<AnyView>& heads, int64_t sample, int64_t head) {
  const Shape& s = heads.tensor.shape;
  return heads.begin() + sample * s[1] * heads.stride() + head * s[3];
}

// Reads `rows` rows: where they lie, if they are floats, else in `buffer`.
inline HeadRows<const float> ReadHead(const ConstHeads& heads, int64_t sample, int64_t head,
                                      int64_t rows, float* buffer) {
  const ConstView& tensor = heads.tensor;
  const int64_t begin = HeadBegin(heads, sample, head), dim = tensor.shape[3];
  if (tensor.dtype == DType::kFloat32) return {tensor.As<float>() + begin, heads.stride()};
  for (int64_t i = 0; i < rows; ++i) {
    ConvertToFloats(tensor, begin + i * heads.stride(), dim, buffer + i * dim);
  }
  return {buffer, dim};
}

// The place to write rows, before WriteHead().
inline HeadRows<float> HeadToWrite(const Heads& heads, int64_t sample, int64_t head,
                                   float* buffer) {
  const View& tensor = heads.tensor;
  if (tensor.dtype != DType::kFloat32) return {buffer, tensor.shape[3]};
  return {tensor.As<float>() + HeadBegin(heads, sample, head), heads.stride()};
}

inline void WriteHead(const HeadRows<float>& from, int64_t rows, const Heads& heads, int64_t sample,
                      int64_t head) {
  const int64_t begin = HeadBegin(heads, sample, head), dim = heads.tensor.shape[3];
  if (heads.tensor.dtype == DType::kFloat32) return;
  for (int64_t i = 0; i < rows; ++i) {
    ConvertFromFloats(from.data + i * from.stride, dim, heads.tensor, begin + i * heads.stride());
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_HEAD_ROWS_H_
