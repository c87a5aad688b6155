// y = x in another floating-point dtype: fp32, bf16 and fp16, in all nine pairs. One rounding, to
// nearest, ties to even. A value too large for fp16 becomes infinite, a NaN stays a NaN. Equal
// dtypes are copied bit for bit. Tensors of one element count, any shape, that do not overlap
// (unless dtype and memory are the same).
#ifndef FSDP_TRAIN_TRAINER_OPS_CAST_H_
#define FSDP_TRAIN_TRAINER_OPS_CAST_H_

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

void Cast(Stream& stream, ConstView x, View y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CAST_H_
