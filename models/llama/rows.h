// The parts of the family's table that models with Llama's attention share: models/moe extends
// them.
// Tests: tests/models/moe/family_test.cc
#ifndef FSDP_TRAIN_MODELS_LLAMA_ROWS_H_
#define FSDP_TRAIN_MODELS_LLAMA_ROWS_H_

#include <vector>

#include "models/llama/config.h"
#include "models/table_family.h"

namespace fsdp {

std::vector<FieldRow<LlamaConfig>> LlamaRows();
void FillLlamaDependent(LlamaConfig& config, const ModelFamily::Given& given);
void ValidateLlama(const LlamaConfig& config, ShapeChecks& checks);
void ShrinkLlama(LlamaConfig& config);
DecoderShape DecoderOfLlama(const LlamaConfig& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_LLAMA_ROWS_H_
