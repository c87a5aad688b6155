// Ops on a model's buffers, which are statistics of the batches seen so far (nn/buffer.h).
// Tests: tests/trainer/ops/running_statistics_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_RUNNING_STATISTICS_H_
#define FSDP_TRAIN_TRAINER_OPS_RUNNING_STATISTICS_H_

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// count += 1; one int64.
void CountBatch(Stream& stream, View count);

// to = from / divisor where `coefficient` [1], fp32, is a number; where it is NaN, `to` stays as it
// is. `from` and `to` have one dtype and element count: fp32, or int64 with the divisor 1.
void TakeUnlessNaN(Stream& stream, ConstView coefficient, float divisor, ConstView from, View to);

// mean = sums / weight [1]; zeros where the weight is 0. sums, mean: fp32, of one element count.
void MeanOf(Stream& stream, ConstView sums, ConstView weight, View mean);

// bias[e] += rate sign(mean(loads) - loads[e]), the step without an auxiliary loss of DeepSeek-V3
// (arXiv:2412.19437, section 2.1.2). Where `coefficient` [1] is NaN, or all loads are 0, `bias`
// stays. loads and bias: fp32, n elements. The mean is a sum in float64, in order; 3 FLOPs an
// element.
void MoveBias(Stream& stream, ConstView coefficient, ConstView loads, float rate, View bias);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_RUNNING_STATISTICS_H_
