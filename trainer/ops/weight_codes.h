// Frozen weights in four or eight bits an element, in blocks of 64 that share a scale (QLoRA,
// Dettmers et al. 2023, arXiv:2305.14314).
//   kNf4        Appendix E's sixteen values of [-1, 1]. The scale is the largest |x| of the block,
//               the code that of the value nearest to the quotient, ties to the lower value. Codes
//               and scales are those of bitsandbytes 0.50's quantize_4bit on the CPU, to the bit:
//               with s = max(scale, 1e-38) the quotient is x * (1 / s), in a block of fewer than
//               64 elements x / s; such a block's scale is s.
//   kNf4Nested  The same codes. A scale is one byte, the index (0 to 255) of one of the 256 signed
//               values of state_codes.h in ascending order:
//                 scale' = value * maximum + mean
//               mean: of the tensor's scales; maximum: of |scale - mean| over a record's blocks.
//               The value is the one nearest to (scale - mean) / maximum, ties to the lower value;
//               0 where the maximum is 0.
//   kInt8       As kInt8 of quantize.h.
// Each operation is rounded to fp32 by itself. An element arrives as value * scale.
//
// A tensor is kept as records of 16,384 elements, 256 blocks. Each can be decoded alone:
//   kNf4        8,192 bytes of codes, 256 scales in fp32                          9,216 bytes
//   kNf4Nested  8,192 bytes of codes, NestedScales                                8,464 bytes
//   kInt8       16,384 bytes of codes, 256 scales in fp32                        17,408 bytes
// In nf4, byte i has element 2 i in its high half and element 2 i + 1 in its low half. In the last
// record, elements behind the tensor's end have the code of 0; bytes of scales of blocks behind it
// are 0.
//   Special  A block with an infinity or a NaN has the scale NaN and codes of 0: all of it arrives
//            as NaN. In kNf4Nested the whole tensor does, by its mean.
// Tests: tests/trainer/ops/weight_records_test.cc
// Tests: tests/trainer/ops/weight_codes_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_WEIGHT_CODES_H_
#define FSDP_TRAIN_TRAINER_OPS_WEIGHT_CODES_H_

#include <cstdint>
#include <span>

#include "trainer/core/view.h"
#include "trainer/ops/weight_code.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

inline constexpr int64_t kWeightBlock = 64, kWeightRecord = 16384;      // Elements.
inline constexpr int64_t kRecordBlocks = kWeightRecord / kWeightBlock;  // 256.

// The end of a record in kNf4Nested, behind its codes.
struct NestedScales {
  uint8_t codes[kRecordBlocks] = {};
  float maximum = 0, mean = 0;
  uint8_t zeros[8] = {};
};

// Bytes of a record's codes, which its scales follow; of a whole record; and of the records of a
// tensor. Not for kNone.
constexpr int64_t RecordCodeBytes(WeightCode code) {
  return code == WeightCode::kInt8 ? kWeightRecord : kWeightRecord / 2;
}
constexpr int64_t RecordBytes(WeightCode code) {
  constexpr int64_t kScales = kRecordBlocks * sizeof(float), kNested = sizeof(NestedScales);
  return RecordCodeBytes(code) + (code == WeightCode::kNf4Nested ? kNested : kScales);
}
constexpr int64_t CodedBytes(WeightCode code, int64_t elements) {
  return (elements + kWeightRecord - 1) / kWeightRecord * RecordBytes(code);
}

// On the host. x: elements of a tensor from the first one of a record on, up to the end of a record
// or of the tensor. records: CodedBytes(code, x.size()) bytes, from a multiple of 4 bytes on.

// Writes all bytes of the records. kNf4Nested: `scales` gets the ceil(x.size() / 64) scales, and
// the records' NestedScales are zeros until EncodeScales(). Other codes leave `scales` alone.
void EncodeRecords(WeightCode code, std::span<const float> x, uint8_t* records,
                   std::span<float> scales);

// The mean of a tensor's scales: the sums of its records, added in order in float64, divided by the
// number of its blocks and rounded to fp32. This is the sum of a record's scales, in order.
double SumScales(std::span<const float> scales);

// kNf4Nested. Writes the NestedScales of these records. scales: as EncodeRecords() gave them.
void EncodeScales(float mean, std::span<const float> scales, uint8_t* records);

void DecodeRecords(WeightCode code, const uint8_t* records, std::span<float> x);

// On the stream's device, in one launch.
//   records  uint8 [CodedBytes(code, n)], from a multiple of 16 bytes on: of one tensor.
//   w        fp32, bf16 or fp16, n elements. Each is rounded once more to bf16 or fp16.
// Throws std::invalid_argument before anything is enqueued.
void DecodeWeight(Stream& stream, ConstView records, WeightCode code, View w);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_WEIGHT_CODES_H_
