// Dropout (Srivastava et al. 2014, JMLR 15). Random numbers belong to elements, so no bit depends
// on ranks, micro-batches or recomputation: element e of sample b is kept where
//   Philox({low(e / 4), high(e / 4), site, 0}, key[b])[e % 4] >= rate 2^32
// and becomes x / (1 - rate), else 0 (trainer/core/philox.h). e counts inside the sample.
// x, y: [batch, elements of a sample], fp32, bf16 or fp16, both of one dtype: multiplied in fp32,
// rounded once. keys: int32 [batch, 2], low word first (Batch). `site` tells the places of a model
// apart. Backward is the same call on the gradient: nothing is saved. No result depends on the
// number of threads.
#ifndef FSDP_TRAIN_TRAINER_OPS_DROPOUT_H_
#define FSDP_TRAIN_TRAINER_OPS_DROPOUT_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// 0 <= rate < 1. y may be x. 15 FLOPs an element.
void Dropout(Stream& stream, ConstView x, ConstView keys, uint32_t site, double rate, View y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_DROPOUT_H_
