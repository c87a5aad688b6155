// Gathers of weights in blocks that share a scale (qwZ of ZeRO++, Wang et al. 2023,
// arXiv:2306.10209, section 3.1): which elements of a flat parameter travel, and in what order.
// Tests: tests/trainer/engine/quantize_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_GATHER_H_
#define FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_GATHER_H_

#include <vector>

#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/options.h"
#include "trainer/ops/quantized_layout.h"

namespace fsdp {

struct QuantizedGather {
  QuantizedLayout own, all;  // This rank's shard; and every rank's, one behind the other.
};

// Matrices of at least min_size elements are quantised, the rest travels in the flat parameter's
// `compute`. Blocks end with the parameter or the shard. `shard`: this rank's. `quantize.gather` is
// not kNone.
QuantizedGather LayOutGather(const FlatParameter& flat, int shard,
                             const FsdpOptions::Quantize& quantize);

// Bytes of the quantised value over all ranks; 0 where the flat parameter travels as it is.
int64_t QuantizedBytes(const FlatParameter& flat, const FsdpOptions::Quantize& quantize);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_GATHER_H_
