// Targets of an encoded prompt, one token after the other, against the forward pass that training
// runs, which is held to transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "models/shape.h"
#include "models/t5/config.h"
#include "tests/testing/changed_rows.h"
#include "tests/testing/tiny_run.h"
#include "trainer/data/pairs/pair_batch.h"
#include "trainer/generate/generator.h"
#include "trainer/nn/initial_values.h"
#include "trainer/nn/model.h"

namespace fsdp::testing {
namespace {

T5Config Config(bool gated) {
  return {.hidden_size = 24,
          .intermediate_size = 52,
          .num_hidden_layers = 2,
          .num_decoder_layers = 3,
          .num_attention_heads = 3,
          .head_dim = 10,
          .vocab_size = 101,
          .relative_attention_num_buckets = 8,
          .relative_attention_max_distance = 9,
          .gated_mlp = gated,
          .tie_word_embeddings = !gated,
          .target_length = 7};
}

class TargetTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Versions, TargetTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Gated" : "Relu"; });

// Large enough that tokens are not all alike.
void LargeWeights(const Parameter& p, int64_t begin, std::span<float> values) {
  FillInitial(p, 5, begin, values);
  for (float& value : values) value *= p.shape().rank() == 2 ? 3.0f : 1.0f;
}

StoredModel StoredT5(T5Config config) {
  config.target_length = 0;  // No part of the shape.
  StoredModel stored;
  stored.shape = config;
  stored.model = MakeModel(config);
  for (const ModelSegment& segment : stored.model->segments()) {
    for (Parameter* p : segment.parameters) p->Freeze();
  }
  stored.weights.parameters = LargeWeights;
  return stored;
}

constexpr int32_t kInput[] = {5, 1, 93, 40, 1}, kTarget[] = {17, 60, 2, 88, 31, 9, 1};

// Rows beside it, one of a longer input and one that never starts, change nothing of it.
TEST_P(TargetTest, OneTokenAfterTheOtherIsTheForwardPass) {
  const auto sample = [](int64_t, int64_t row, const Batch& batch) {
    const PairRow to = RowOf(batch, row);
    std::ranges::copy(kInput, to.input.begin());
    std::ranges::copy(kTarget, to.target.begin());
    FinishRow(to, std::ssize(kInput), std::ssize(kTarget));
  };
  TinyRun run;
  run.model = [config = Config(GetParam())] { return MakeModel(config); };
  run.rows = std::make_shared<ChangedRows>(run.model()->Inputs(run.options.executor.sample_length),
                                           sample);
  run.initial = LargeWeights;
  run.steps = 1;
  for (int64_t column = 0; column < std::ssize(kTarget); ++column) {
    run.logits.emplace_back(0, column);
  }
  const std::vector<float> want = Train(run).logits;
  const auto vocab = static_cast<size_t>(Config(GetParam()).vocab_size);
  const auto expect = [&](std::span<const float> got, size_t column) {
    const std::span<const float> wanted = std::span(want).subspan(column * vocab, vocab);
    float high = 0;
    for (const float v : wanted) high = std::max(high, std::abs(v));
    // Other orders of the same sums: some hundred roundings, of values of this size.
    for (size_t i = 0; i < vocab; ++i) ASSERT_NEAR(got[i], wanted[i], 2e-5 * high) << column;
  };
  Generator generator(StoredT5(Config(GetParam())),
                      {.rows = 3, .capacity = 7, .input = 9, .threads = 2});
  for (int round = 0; round < 2; ++round) {  // The second finds what the first has left.
    generator.Start(0, std::vector<int32_t>(9, 7 + round));
    expect(generator.Start(1, kInput), 0);
    for (int32_t t = 0; t + 1 < std::ssize(kTarget); ++t) {
      const int32_t next[] = {kTarget[t], kTarget[t], 0};
      const int32_t places[] = {9 + t, static_cast<int32_t>(std::ssize(kInput)) + t, 0};
      expect(generator.Next(next, places).subspan(vocab, vocab), static_cast<size_t>(t) + 1);
    }
  }
}

TEST_P(TargetTest, APromptGivesTheSameTextAloneAndBesideOthers) {
  const std::vector<std::vector<int32_t>> prompts = {{5, 1, 93, 40, 1}, {1}, {8, 90, 1}};
  GenerateOptions options;
  options.max_tokens = 6;
  options.vocab = static_cast<int32_t>(Config(GetParam()).vocab_size);
  Generator together(StoredT5(Config(GetParam())), {.rows = 3, .capacity = 6, .input = 5});
  Generator alone(StoredT5(Config(GetParam())), {.rows = 1, .capacity = 6, .input = 5});
  const std::vector<Continuation> all = Generate(together, prompts, options);
  for (size_t p = 0; p < prompts.size(); ++p) {
    options.first = p;
    const Continuation one = Generate(alone, {prompts[p]}, options)[0];
    EXPECT_EQ(one.tokens, all[p].tokens) << p;
    EXPECT_EQ(one.tokens.size(), 6u);
    EXPECT_EQ(one.end, Continuation::End::kLength);
  }
  EXPECT_NE(all[0].tokens, all[1].tokens);
  // One text ends with its first token; then a row of these has no prompt.
  options.first = 0;
  options.eos = {all[0].tokens[0]};
  for (const int64_t n : {3, 2}) {
    const std::vector<Continuation> ended =
        Generate(together, {prompts.begin(), prompts.begin() + n}, options);
    EXPECT_EQ(ended[0].end, Continuation::End::kEndOfText);
    EXPECT_FALSE(ended[1].tokens.empty());
  }
}

TEST_P(TargetTest, AGeneratorWantsRoomForInputs) {
  const auto make = [&](int64_t input) {
    Generator(StoredT5(Config(GetParam())), {.rows = 1, .capacity = 4, .input = input});
  };
  EXPECT_NO_THROW(make(1));
  EXPECT_THROW(make(0), std::invalid_argument);
  EXPECT_THROW(make(kMaxPositions + 1), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp::testing
