// Operands of Gemm() in the tensors of an op.
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_VIEWS_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_VIEWS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/ops/cpu/gemm.h"

namespace fsdp {

// Begins at element `begin` of x; rows as stored are `stride` elements apart.
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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_VIEWS_H_
