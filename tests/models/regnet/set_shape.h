// The RegNets of tests/fixtures/regnet, and their images.
#ifndef FSDP_TRAIN_TESTS_MODELS_REGNET_SET_SHAPE_H_
#define FSDP_TRAIN_TESTS_MODELS_REGNET_SET_SHAPE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/testing/json.h"
#include "tests/testing/tiny_run.h"
#include "trainer/data/row_source.h"

namespace fsdp::testing {

// Batch norms are over the samples of all ranks: see SpreadBatchNorms().
void SetRegNetShape(const testing::Json& config, TinyRun& run);
// Each sample's pixels, which the model gets as (pixel - 128) / 64, and its label.
std::shared_ptr<const RowSource> RegNetRows(const testing::Json& config,
                                            const std::vector<int32_t>& samples,
                                            const std::vector<float>& weights);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_MODELS_REGNET_SET_SHAPE_H_
