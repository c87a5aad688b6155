#include "trainer/data/tokens/token_batch.h"

#include <cstddef>
#include <span>
#include <stdexcept>

#include "trainer/core/argsort.h"

namespace fsdp {

BatchSpec TokenInputs(int64_t length, int64_t vocab_size) {
  using Role = BatchInput::Role;
  const Shape row{length};
  return {.inputs = {{"tokens", DType::kInt32, row, Role::kInput, vocab_size},
                     {"targets", DType::kInt32, row, Role::kTarget, vocab_size},
                     {"weights", DType::kFloat32, row, Role::kWeight},
                     {"positions", DType::kInt32, row, Role::kInput, length},
                     {"order", DType::kInt32, row, Role::kDerived}},
          .targets = length,
          .tokens = length};
}

TokenBatch::TokenBatch(const Batch& batch) {
  if (batch.inputs.size() != 5) throw std::invalid_argument("[TokenBatch] no batch of tokens");
  tokens = batch.inputs[0];
  targets = batch.inputs[1];
  weights = batch.inputs[2];
  positions = batch.inputs[3];
  order = batch.inputs[4].Reshape(Shape{tokens.NumElements()});
  sample_keys = batch.sample_keys;
}

void OrderTokens(const TokenBatch& batch) {
  const auto all = [](const View& view) {
    return std::span(view.As<int32_t>(), static_cast<size_t>(view.NumElements()));
  };
  Argsort(all(batch.tokens), all(batch.order));
}

}  // namespace fsdp
