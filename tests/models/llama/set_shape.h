// config.json of the Llama family, as transformers 5 writes it, of the fixtures.
#ifndef FSDP_TRAIN_TESTS_MODELS_LLAMA_SET_SHAPE_H_
#define FSDP_TRAIN_TESTS_MODELS_LLAMA_SET_SHAPE_H_

#include "tests/testing/json.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {

void SetLlamaShape(const testing::Json& config, TinyRun& run);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_MODELS_LLAMA_SET_SHAPE_H_
