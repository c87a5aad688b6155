// DHENs of tests/fixtures/dhen, as a run has them. They have no tables: an input has the vectors of
// the columns of ids.
#ifndef FSDP_TRAIN_TESTS_MODELS_DHEN_SET_SHAPE_H_
#define FSDP_TRAIN_TESTS_MODELS_DHEN_SET_SHAPE_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/dhen/config.h"
#include "tests/testing/tiny_run.h"
#include "trainer/data/row_source.h"

namespace fsdp::testing {

// A DHEN that is fed the vectors of its columns of ids: `vectors`, fp32 [tables, table_width] a
// sample, behind the inputs of others. It has no tables.
std::unique_ptr<Model> DhenOfVectors(const DhenConfig& config);

void SetDhenShape(const nlohmann::json& config, TinyRun& run);
std::shared_ptr<const RowSource> DhenRows(const nlohmann::json& config,
                                          const std::vector<int32_t>& samples,
                                          const std::vector<float>& weights);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_MODELS_DHEN_SET_SHAPE_H_
