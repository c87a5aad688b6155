// The values that a model's parameters begin with.
#ifndef FSDP_TRAIN_TRAINER_NN_INITIAL_VALUES_H_
#define FSDP_TRAIN_TRAINER_NN_INITIAL_VALUES_H_

#include <cstdint>
#include <span>

#include "trainer/nn/parameter.h"
#include "trainer/nn/table.h"

namespace fsdp {

// Fills a parameter's elements from `begin` on with the initial values of its slices: see Init. An
// element's value depends only on the seed, its slice and its place in the slice.
void FillInitial(const Parameter& parameter, uint64_t seed, int64_t begin, std::span<float> values);
// The same for an embedding table's elements.
void FillInitial(const EmbeddingTable& table, uint64_t seed, int64_t begin,
                 std::span<float> values);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_INITIAL_VALUES_H_
