// Operands of a matrix product, on every device, and their places in the tensors of an op.
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_GEMM_OPERAND_H_
#define FSDP_TRAIN_TRAINER_OPS_GEMM_OPERAND_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"

namespace fsdp {

// A factor as it lies in memory: row r starts at data + r * stride. op() transposes it or not.
struct GemmOperand {
  const void* data = nullptr;
  int64_t stride = 0;  // Elements, >= the length of a stored row.
  bool transposed = false;
  DType dtype = DType::kFloat32;  // Or bf16, fp16.
};
struct GemmResult {
  void* data = nullptr;
  int64_t stride = 0;             // Elements, >= n.
  DType dtype = DType::kFloat32;  // Or bf16, fp16: the sum, in fp32, is rounded once.
};

// A factor that begins at element `begin` of x, with stored rows `stride` elements apart.
inline GemmOperand Factor(const ConstView& x, int64_t begin, int64_t stride,
                          bool transposed = false) {
  return {x.data + begin * SizeOf(x.dtype), stride, transposed, x.dtype};
}
inline GemmOperand Transposed(const ConstView& x, int64_t begin, int64_t stride) {
  return Factor(x, begin, stride, true);
}

inline GemmResult Result(const View& c, int64_t begin, int64_t stride) {
  return {c.data + begin * SizeOf(c.dtype), stride, c.dtype};
}

// Changes to the sums before they are rounded to C, on CUDA.
struct GemmEpilogue {
  float scale = 1;
  std::optional<ConstView> bias = std::nullopt;  // [n], added to every row.
  const void* added = nullptr;  // D, of C's dtype and stride; may be C itself. Null: none.
  // At most one of the two, of C's dtype and stride. GELU is that of activations.h for rounded C:
  // the same bits as by a call of its own.
  void* gelu = nullptr;           // gelu(C) goes here besides.
  const void* gelu_of = nullptr;  // u: C becomes C gelu'(u).
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_GEMM_OPERAND_H_
