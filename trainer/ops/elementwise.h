// Basic elementwise ops. Tensors have one element count and any shape. Each output may be one of
// the inputs itself; a partial overlap is refused. No result depends on the number of threads.
#ifndef FSDP_TRAIN_TRAINER_OPS_ELEMENTWISE_H_
#define FSDP_TRAIN_TRAINER_OPS_ELEMENTWISE_H_

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// y = a + b; y += x. fp32, bf16 or fp16, all of one dtype: added in fp32, rounded once.
void Add(Stream& stream, ConstView a, ConstView b, View y);
void Accumulate(Stream& stream, ConstView x, View y);
// y *= factor. fp32, bf16 or fp16: multiplied in fp32, rounded once.
void Scale(Stream& stream, float factor, View y);
// y = value, rounded to y's dtype: fp32, bf16, fp16, or int32 (a value that it holds exactly).
void Fill(Stream& stream, float value, View y);
// y = x, bit for bit, any one dtype. Also between device and pinned host memory.
void Copy(Stream& stream, ConstView x, View y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ELEMENTWISE_H_
