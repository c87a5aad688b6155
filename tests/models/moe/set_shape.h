// config.json of mixtures of experts, as transformers 5 writes it, of the fixtures.
#ifndef FSDP_TRAIN_TESTS_MODELS_MOE_SET_SHAPE_H_
#define FSDP_TRAIN_TESTS_MODELS_MOE_SET_SHAPE_H_

#include <cstdint>
#include <span>

#include "models/moe/config.h"
#include "tests/testing/json.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {

MoeConfig MoeConfigOf(const testing::Json& config);
void SetMoeShape(const testing::Json& config, TinyRun& run);

// Numbers that belong to slices, as those of files do, whatever parameters have them: a
// TinyRun::Initial.
void InitialOfSlices(const Parameter& parameter, int64_t begin, std::span<float> values);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_MODELS_MOE_SET_SHAPE_H_
