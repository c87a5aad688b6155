// The pieces of a flat parameter that are quantised where it travels in blocks that share a scale.
// Tests: tests/trainer/engine/quantize_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_PIECES_H_
#define FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_PIECES_H_

#include <cstdint>
#include <vector>

#include "trainer/fsdp/layout.h"
#include "trainer/ops/quantized_layout.h"

namespace fsdp {

// Elements [begin, end) of the flat parameter: matrices of at least min_size elements are
// quantised, the rest travels as it is.
std::vector<QuantizedPiece> QuantizedPieces(const FlatParameter& flat, int64_t begin, int64_t end,
                                            int64_t min_size);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_PIECES_H_
