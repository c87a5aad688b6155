// Optimizer state in one byte an element: blocks of 256 elements share a scale, and a byte names
// one of 256 values of [-1, 1] or [0, 1] (block-wise dynamic quantisation; Dettmers et al. 2021,
// arXiv:2110.02861, sections 2.1 and 2.2).
//   absmax = the largest |x| of the block, fp32
//   code   = the one whose value is nearest to x / absmax, a quotient rounded to fp32
//   x'     = value * absmax
// Values. With i from 0 to 6 and n = 2^i (signed) or 2^(i + 1) (unsigned): the middles of n equal
// parts of [0.1, 1], times 10^(i - 6), for signed also their negatives; 0; 1. They have the bits of
// create_dynamic_map in bitsandbytes 0.50 and torchao 0.18.
// Codes. The unsigned code is the index of the value. The signed one is its index less 127, modulo
// 256: so zero bytes are zeros, with any absmax.
//   Rounding  To nearest. A tie goes to the lower value. An unsigned x above zero never has the
//             code 0: a second moment of 0 would make the next step as large as eps allows.
//   Zero      A block of zeros has the absmax 0 and the codes 0.
//   Special   A block with an infinity or a NaN has that as absmax: a NaN, if there is one.
// Tests: tests/trainer/ops/state_codes_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_STATE_CODES_H_
#define FSDP_TRAIN_TRAINER_OPS_STATE_CODES_H_

#include <cstdint>
#include <span>

#include "trainer/ops/state_code_tables.h"

namespace fsdp {

inline constexpr int64_t kCodeBlock = 256;  // Elements.

extern const StateCodeTables kSignedCodes, kUnsignedCodes;

// On the host. The code nearest to a quotient of [-1, 1], by the rules of Rounding but its last
// one.
uint8_t EncodeQuotient(const StateCodeTables& tables, float quotient);

// On the host, for at most kCodeBlock elements: one block. They return or take its absmax.
// codes: as many as x has elements.
float EncodeBlock(const StateCodeTables& tables, std::span<const float> x, uint8_t* codes);
void DecodeBlock(const StateCodeTables& tables, const uint8_t* codes, float absmax,
                 std::span<float> x);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_STATE_CODES_H_
