// What a token of a decoder takes, as MFU counts it: of the weights, not of the steps' own kernels,
// which recompute and are chunked.
// Tests: tests/trainer/bench/step_products_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_FLOPS_H_
#define FSDP_TRAIN_TRAINER_NN_FLOPS_H_

#include <cstdint>

#include "trainer/nn/model.h"

namespace fsdp {

// Model::FlopsPerToken() of a decoder: 6 for each weight of its blocks' matrices and of the head's,
// `head`, and for attention QK^T and PV
// of the causal half: 2 products x 2 FLOPs x `query_size` x seq / 2 a layer, three times with
// backward.
double DecoderFlopsPerToken(const std::vector<ModelSegment>& segments, const Shape& head,
                            int64_t query_size, int64_t seq);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_FLOPS_H_
