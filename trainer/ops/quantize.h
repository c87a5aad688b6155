// Packs shards for collectives into a few bits per element: blocks of elements share a scale
// (ZeRO++, Wang et al. 2023, arXiv:2306.10209, with symmetric levels). With m the largest |x| of a
// block:
//   scale = max(m / levels, 2^-94)                levels: 127 (kInt8), 7 (kInt4), 448 (kFp8: e4m3)
//   code  = round(x * (1 / scale))                y = code * scale
// Integers are two's complement. Division, reciprocal, products and the rounding to the form are
// each a rounding of their own, to nearest, ties to even, in fp32. y in another dtype is rounded
// once more.
//   Error    For y in fp32: half a scale in kInt8 and kInt4; in kFp8 the larger of 1/16 of |x| and
//            2^-10 of the scale. fp32's own roundings add 2^-14 of this bound.
//   Small    The least scale keeps quotients, values and their sums out of the subnormal numbers. A
//            block with a smaller m / levels gets that scale, and has the error as above: subnormal
//            elements arrive as zeros.
//   Large    In kInt8 a scale is at most FLT_MAX / 127, rounded towards zero: no finite x becomes
//            infinite.
//   Special  A block that holds an infinity or a NaN has the scale NaN and codes 0: all of it
//            arrives as NaN. A block of zeros arrives as zeros.
//   Raw      Elements of pieces that are not quantised are converted to their dtype (cast.h).
//   Threads  No bit depends on the number of threads, on the instruction set or on the type of
//            device, except which NaN a NaN is.
// Each op is one launch, which reads the table beside its operands.
//   table    The table of a layout (quantized_layout.h): n elements, `bytes` packed.
//   packed   uint8, at least `bytes`, from a multiple of 16 bytes on. Bytes behind them stay.
// Throw std::invalid_argument before anything is enqueued.
#ifndef FSDP_TRAIN_TRAINER_OPS_QUANTIZE_H_
#define FSDP_TRAIN_TRAINER_OPS_QUANTIZE_H_

#include "trainer/ops/quantized_layout.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// x: [n], fp32, bf16 or fp16. Writes all of the `bytes`, padding as 0.
void Quantize(Stream& stream, ConstView x, const QuantizedTable& table, View packed);

// y: [n], fp32, bf16 or fp16. Elements outside all pieces become 0.
void Dequantize(Stream& stream, ConstView packed, const QuantizedTable& table, View y);

// y[i] = sum over r of Dequantize(packed[r])[i] in fp32, added in fp32, in the order of r. packed:
// [ranks, stride], stride a multiple of 16. y: [n], fp32.
void DequantizeSum(Stream& stream, ConstView packed, const QuantizedTable& table, View y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_QUANTIZE_H_
