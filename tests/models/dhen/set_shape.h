// DHENs of tests/fixtures/dhen, as a run has them.
#ifndef FSDP_TRAIN_TESTS_MODELS_DHEN_SET_SHAPE_H_
#define FSDP_TRAIN_TESTS_MODELS_DHEN_SET_SHAPE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "models/dhen/config.h"
#include "tests/testing/json.h"
#include "tests/testing/tiny_run.h"
#include "trainer/data/row_source.h"

namespace fsdp::testing {

// A DHEN that is fed the vectors of its columns of ids: `vectors`, fp32 [tables, table_width] a
// sample, behind the inputs of others. It has no tables.
std::shared_ptr<Model> DhenOfVectors(const DhenConfig& config);

// The fixtures' own models.
void SetDhenShape(const testing::Json& config, TinyRun& run);
std::shared_ptr<const RowSource> DhenRows(const testing::Json& config,
                                          const std::vector<int32_t>& samples,
                                          const std::vector<float>& weights);

// The same with tables, those of tools/reference/precision.py. A column's ids are the first numbers
// of what the fixture has for its vector; the multiples of 5 are absent.
void SetTableDhenShape(const testing::Json& config, TableDType dtype, TinyRun& run);
std::shared_ptr<const RowSource> TableDhenRows(const testing::Json& config,
                                               const std::vector<int32_t>& samples,
                                               const std::vector<float>& weights);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_MODELS_DHEN_SET_SHAPE_H_
