// The fixtures of ViT: config.json as transformers 5 or tools/reference/vit.py writes it, and
// samples, each of which is a row of pixels from 0 to 255 and a label.
#ifndef FSDP_TRAIN_TESTS_MODELS_VIT_SET_SHAPE_H_
#define FSDP_TRAIN_TESTS_MODELS_VIT_SET_SHAPE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/testing/json.h"
#include "tests/testing/tiny_run.h"
#include "trainer/data/row_source.h"

namespace fsdp::testing {

void SetVitShape(const testing::Json& config, TinyRun& run);

// The model gets (pixel - 128) / 64. `weights`: one of each sample; empty: 1.
std::shared_ptr<const RowSource> VitRows(const testing::Json& config,
                                         const std::vector<int32_t>& samples,
                                         const std::vector<float>& weights);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_MODELS_VIT_SET_SHAPE_H_
