// Generation with a cache against the forward pass that training runs, which is held to PyTorch.
#include "trainer/generate/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tiny_run.h"
#include "trainer/core/errors.h"
#include "trainer/nn/initial_values.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

using testing::TinyRun;

// Large enough that tokens are not all alike.
void Weights(const Parameter& p, int64_t begin, std::span<float> values) {
  FillInitial(p, 5, begin, values);
  for (float& value : values) value *= p.shape().rank() == 2 ? 8.0f : 1.0f;
}

StoredModel Stored(const ModelShape& shape) {
  StoredModel stored;
  stored.shape = shape;
  stored.model = MakeModel(shape);
  for (const ModelSegment& segment : stored.model->segments()) {
    for (Parameter* p : segment.parameters) p->Freeze();
  }
  stored.weights.parameters = Weights;
  return stored;
}

std::vector<TinyRun> Runs() {
  TinyRun gpt2, qwen3, llama;
  qwen3.llama = TinyRun::TinyLlama();
  llama.llama = TinyRun::TinyLlama();
  llama.llama->qk_norm = false;
  llama.llama->rope_scaling = {};
  return {gpt2, qwen3, llama};
}

class GeneratorTest : public ::testing::TestWithParam<int> {
 protected:
  TinyRun run_ = Runs()[static_cast<size_t>(GetParam())];
  ModelShape shape_ = run_.shape();

  std::vector<int32_t> Tokens(int64_t sample) const {
    std::vector<int32_t> tokens(static_cast<size_t>(run_.options.executor.sample_length) + 1);
    std::vector<float> weights(tokens.size() - 1);
    testing::SampleOf(run_)(1, sample, tokens, weights);
    tokens.pop_back();
    return tokens;
  }
};

void ExpectNear(std::span<const float> got, std::span<const float> want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  float high = 0;
  for (const float v : want) high = std::max(high, std::abs(v));
  // Other orders of the same sums: some hundred roundings, of values of this size.
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5 * high) << what;
}

TEST_P(GeneratorTest, TokenByTokenAndInOnePieceAreTheForwardPass) {
  const std::vector<int32_t> tokens = Tokens(0);
  run_.initial = Weights;
  run_.steps = 1;
  for (size_t i = 0; i < tokens.size(); ++i) run_.logits.emplace_back(0, i);
  const std::vector<float> want = testing::Train(run_).logits;
  const auto vocab = static_cast<size_t>(VocabSize(shape_));
  const auto wanted = [&](size_t i) { return std::span(want).subspan(i * vocab, vocab); };

  const auto capacity = static_cast<int64_t>(tokens.size());
  Generator generator(Stored(shape_), {.rows = 2, .capacity = capacity, .threads = 2});
  for (const size_t prompt : {size_t{1}, size_t{4}, tokens.size()}) {
    // Row 1 generates, row 0 holds something else.
    generator.Start(0, std::span(tokens).last(prompt));
    ExpectNear(generator.Start(1, std::span(tokens).first(prompt)), wanted(prompt - 1), "prompt");
    for (size_t i = prompt; i < tokens.size(); ++i) {
      const int32_t next[] = {tokens[0], tokens[i]};
      const int32_t positions[] = {0, static_cast<int32_t>(i)};
      ExpectNear(generator.Next(next, positions).subspan(vocab), wanted(i),
                 "token " + std::to_string(i));
    }
  }
}

// No kernel looks whether what it is given lies in its tables.
TEST_P(GeneratorTest, WhatLiesInNoTableIsADataError) {
  const auto vocab = static_cast<int32_t>(VocabSize(shape_));
  const auto error_of = [&](std::span<const int32_t> tokens, int32_t position) -> std::string {
    Generator generator(Stored(shape_), {.rows = 1, .capacity = 4});
    return testing::ErrorOf<DataError>([&] {
      generator.Start(0, tokens.first(1));
      const int32_t positions[] = {position};
      generator.Next(tokens.last(1), positions);
    });
  };
  EXPECT_EQ(error_of(std::vector{vocab - 1, 0}, 3), "");
  EXPECT_EQ(error_of(std::vector{vocab, 0}, 1),
            "data: text 0, token 0: token " + std::to_string(vocab) +
                " is outside the vocabulary of " + std::to_string(vocab) + " tokens");
  EXPECT_NE(error_of(std::vector{0, -1}, 1).find("token -1 is outside"), std::string::npos);
  EXPECT_EQ(error_of(std::vector{0, 0}, 4),
            "data: text 0, token 0: position 4 is not the next of a cache of 4");
}

TEST_P(GeneratorTest, APromptDoesNotSeeTheOthersOfItsBatch) {
  std::vector<std::vector<int32_t>> prompts;
  for (const size_t n : {3, 1, 7, 5}) {
    prompts.push_back(Tokens(static_cast<int64_t>(n)));
    prompts.back().resize(n);
  }
  GenerateOptions options;
  options.max_tokens = 9;
  options.vocab = static_cast<int32_t>(VocabSize(shape_));
  options.sampling.top_k = 7;
  Generator together(Stored(shape_), {.rows = 4, .capacity = 16});
  const auto all = Generate(together, prompts, options);
  Generator alone(Stored(shape_), {.rows = 1, .capacity = 16});
  for (size_t p = 0; p < prompts.size(); ++p) {
    std::vector<int32_t> heard;
    GenerateOptions of_p = options;
    of_p.first = p;
    const auto one =
        Generate(alone, {prompts[p]}, of_p, [&](size_t, int32_t token) { heard.push_back(token); });
    EXPECT_EQ(one[0].tokens, all[p].tokens) << p;
    EXPECT_EQ(heard, one[0].tokens);
    EXPECT_EQ(one[0].tokens.size(), 9u);
    EXPECT_EQ(one[0].end, Continuation::End::kLength);
  }
  EXPECT_NE(all[0].tokens, all[1].tokens);
  EXPECT_EQ(Generate(alone, {prompts[0]}, options)[0].tokens, all[0].tokens);
  ++options.seed;
  EXPECT_NE(Generate(alone, {prompts[0]}, options)[0].tokens, all[0].tokens);
}

TEST_P(GeneratorTest, EndsAtTheEndOfTextAndOfTheContext) {
  GenerateOptions options;
  options.max_tokens = 100;
  options.vocab = static_cast<int32_t>(VocabSize(shape_));
  options.sampling.temperature = 0;
  Generator generator(Stored(shape_), {.rows = 1, .capacity = 8});
  const std::vector<int32_t> prompt = {1, 2, 3};
  const Continuation full = Generate(generator, {prompt}, options)[0];
  EXPECT_EQ(full.end, Continuation::End::kContext);
  EXPECT_EQ(full.tokens.size(), 6u);  // The last one needs no place.
  options.eos = {96, full.tokens[2]};
  const Continuation ended = Generate(generator, {prompt}, options)[0];
  EXPECT_EQ(ended.end, Continuation::End::kEndOfText);
  const auto at = std::find(full.tokens.begin(), full.tokens.end(), options.eos[1]);
  EXPECT_EQ(ended.tokens, std::vector<int32_t>(full.tokens.begin(), at));
}

TEST_P(GeneratorTest, RefusesMoreThanTheModelHas) {
  const int64_t positions = MaxPositions(shape_);
  EXPECT_THROW(Generator(Stored(shape_), {.rows = 1, .capacity = positions + 1}),
               std::invalid_argument);
  EXPECT_THROW(Generator(Stored(shape_), {.rows = 0, .capacity = 1}), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Models, GeneratorTest, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace fsdp
