// The fixtures of T5: config.json as transformers 5 writes it, and samples, each of which is a row
// of an input, a target, and how long each of them is.
#ifndef FSDP_TRAIN_TESTS_MODELS_T5_SET_SHAPE_H_
#define FSDP_TRAIN_TESTS_MODELS_T5_SET_SHAPE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/testing/json.h"
#include "tests/testing/tiny_run.h"
#include "trainer/data/row_source.h"

namespace fsdp::testing {

void SetT5Shape(const testing::Json& config, TinyRun& run);

// `weights`: one of each target; empty: 1 within its target's length.
std::shared_ptr<const RowSource> T5Rows(const testing::Json& config,
                                        const std::vector<int32_t>& tokens,
                                        const std::vector<float>& weights);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_MODELS_T5_SET_SHAPE_H_
