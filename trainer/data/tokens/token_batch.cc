#include "trainer/data/tokens/token_batch.h"

#include <cstddef>
#include <span>
#include <stdexcept>

#include "trainer/core/argsort.h"

namespace fsdp {

BatchSpec TokenInputs(int64_t length, int64_t vocab_size, bool lengths) {
  using Role = BatchInput::Role;
  const Shape row{length};
  BatchSpec spec{.inputs = {{"tokens", DType::kInt32, row, Role::kInput, vocab_size},
                            {"targets", DType::kInt32, row, Role::kTarget, vocab_size},
                            {"weights", DType::kFloat32, row, Role::kWeight},
                            {"positions", DType::kInt32, row, Role::kInput, length},
                            {"order", DType::kInt32, row, Role::kDerived}},
                 .targets = length,
                 .tokens = length};
  if (lengths) spec.inputs.push_back({"lengths", DType::kInt32, Shape{}, Role::kInput, length + 1});
  return spec;
}

TokenBatch::TokenBatch(const Batch& batch) {
  if (batch.inputs.size() != 5 && batch.inputs.size() != 6)
    throw std::invalid_argument("[TokenBatch] no batch of tokens");
  tokens = batch.inputs[0];
  targets = batch.inputs[1];
  weights = batch.inputs[2];
  positions = batch.inputs[3];
  order = batch.inputs[4].Reshape(Shape{tokens.NumElements()});
  if (batch.inputs.size() == 6) lengths = batch.inputs[5];
  sample_keys = batch.sample_keys;
}

void OrderTokens(const TokenBatch& batch) {
  const auto all = [](const View& view) {
    return std::span(view.As<int32_t>(), static_cast<size_t>(view.NumElements()));
  };
  Argsort(all(batch.tokens), all(batch.order));
}

}  // namespace fsdp
