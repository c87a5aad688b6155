#include "trainer/data/pairs/pair_batch.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace fsdp {
namespace {

enum Input : size_t {
  kTokens,
  kLengths,
  kDecoderTokens,
  kTargets,
  kWeights,
  kOrder,
  kDecoderOrder,
  kDecoderPositions,
  kInputs
};

template <typename T>
std::span<T> Row(const View& view, int64_t row) {
  const int64_t n = view.NumElements() / view.shape[0];
  return {view.As<T>() + row * n, static_cast<size_t>(n)};
}

}  // namespace

BatchSpec PairInputs(int64_t length, int64_t target, int64_t vocab_size) {
  using Role = BatchInput::Role;
  constexpr DType kInt = DType::kInt32;
  const Shape input{length}, output{target};
  return {.inputs = {{"tokens", kInt, input, Role::kInput, vocab_size},
                     {"lengths", kInt, Shape{}, Role::kInput, length + 1},
                     {"decoder_tokens", kInt, output, Role::kInput, vocab_size},
                     {"targets", kInt, output, Role::kTarget, vocab_size},
                     {"weights", DType::kFloat32, output, Role::kWeight},
                     {"order", kInt, input, Role::kDerived, 0, "tokens"},
                     {"decoder_order", kInt, output, Role::kDerived, 0, "decoder_tokens"},
                     {"decoder_positions", kInt, output, Role::kDerived, 0, "", /*counts=*/true}},
          .targets = target,
          .tokens = length + target};
}

bool IsOfPairs(const BatchSpec& spec) {
  return spec.inputs.size() == kInputs && spec.inputs[kDecoderTokens].name == "decoder_tokens";
}

PairBatch::PairBatch(const Batch& batch) {
  if (batch.inputs.size() != kInputs) throw std::invalid_argument("[PairBatch] no batch of pairs");
  const auto flat = [](const View& view) { return view.Reshape(Shape{view.NumElements()}); };
  encoder.tokens = batch.inputs[kTokens];
  encoder.order = flat(batch.inputs[kOrder]);
  lengths = batch.inputs[kLengths];
  decoder.tokens = batch.inputs[kDecoderTokens];
  decoder.targets = batch.inputs[kTargets];
  decoder.weights = batch.inputs[kWeights];
  decoder.order = flat(batch.inputs[kDecoderOrder]);
  decoder.positions = batch.inputs[kDecoderPositions];
  encoder.sample_keys = decoder.sample_keys = batch.sample_keys;
}

Batch DecoderPart(const Batch& batch, int64_t rows, int64_t tokens) {
  Batch part = batch.First(rows);
  for (const Input i : {kDecoderTokens, kTargets, kWeights, kDecoderOrder, kDecoderPositions}) {
    const View& all = batch.inputs[i];
    part.inputs[i] =
        all.Reshape(Shape{all.NumElements()}).Slice(0, rows * tokens).Reshape(Shape{rows, tokens});
  }
  return part;
}

PairRow RowOf(const Batch& batch, int64_t row) {
  return {Row<int32_t>(batch.inputs[kTokens], row), Row<int32_t>(batch.inputs[kDecoderTokens], row),
          Row<int32_t>(batch.inputs[kTargets], row), Row<float>(batch.inputs[kWeights], row),
          batch.inputs[kLengths].As<int32_t>()[row]};
}

void FinishRow(const PairRow& row, int64_t input, int64_t target) {
  const auto pad = [](std::span<int32_t> tokens, int64_t from) {
    std::fill(tokens.begin() + from, tokens.end(), kPadToken);
  };
  row.length = static_cast<int32_t>(input);
  pad(row.input, input);
  pad(row.target, target);
  std::fill_n(row.weights.begin(), target, 1.0f);
  std::fill(row.weights.begin() + target, row.weights.end(), 0.0f);
  if (row.decoder.empty()) return;
  row.decoder[0] = kPadToken;
  std::copy(row.target.begin(), row.target.end() - 1, row.decoder.begin() + 1);
}

}  // namespace fsdp
