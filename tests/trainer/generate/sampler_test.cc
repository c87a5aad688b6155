#include "trainer/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

// Shares of 10,000 draws at even distances.
std::map<int32_t, double> Shares(const std::vector<float>& logits, const Sampling& sampling) {
  constexpr int kDraws = 10000;
  std::map<int32_t, double> shares;
  for (int i = 0; i < kDraws; ++i) {
    const auto vocab = static_cast<int64_t>(logits.size());
    shares[PickToken(logits, vocab, sampling, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  }
  return shares;
}

void ExpectShares(const std::map<int32_t, double>& got, const std::map<int32_t, double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [token, share] : want) EXPECT_NEAR(got.at(token), share, 1e-3) << token;
}

const float kLog2 = std::log(2.0f);
// Probabilities 1/8, 1/2, 1/8, 1/4.
const std::vector<float> kLogits = {0, 2 * kLog2, 0, kLog2};

TEST(Sampler, DrawsFromTheSoftmax) {
  ExpectShares(Shares(kLogits, {.temperature = 1}), {{0, 0.125}, {1, 0.5}, {2, 0.125}, {3, 0.25}});
  // At half the temperature probabilities are squared: 1, 16, 1, 4 of 22.
  ExpectShares(Shares(kLogits, {.temperature = 0.5}),
               {{0, 1.0 / 22}, {1, 16.0 / 22}, {2, 1.0 / 22}, {3, 4.0 / 22}});
  ExpectShares(Shares(kLogits, {.temperature = 0}), {{1, 1}});
}

TEST(Sampler, TopK) {
  ExpectShares(Shares(kLogits, {.temperature = 1, .top_k = 1}), {{1, 1}});
  ExpectShares(Shares(kLogits, {.temperature = 1, .top_k = 2}), {{1, 2.0 / 3}, {3, 1.0 / 3}});
  // The first of equals is kept.
  ExpectShares(Shares(kLogits, {.temperature = 1, .top_k = 3}),
               {{0, 1.0 / 7}, {1, 4.0 / 7}, {3, 2.0 / 7}});
  ExpectShares(Shares(kLogits, {.temperature = 1, .top_k = 100}),
               {{0, 0.125}, {1, 0.5}, {2, 0.125}, {3, 0.25}});
}

TEST(Sampler, TopP) {
  ExpectShares(Shares(kLogits, {.temperature = 1, .top_p = 0.4}), {{1, 1}});
  ExpectShares(Shares(kLogits, {.temperature = 1, .top_p = 0.6}), {{1, 2.0 / 3}, {3, 1.0 / 3}});
  ExpectShares(Shares(kLogits, {.temperature = 1, .top_p = 0.8}),
               {{0, 1.0 / 7}, {1, 4.0 / 7}, {3, 2.0 / 7}});
  // top_p takes its share of the tokens that top_k leaves.
  ExpectShares(Shares(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.6}), {{1, 1}});
}

TEST(Sampler, NanIsNeverDrawn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectShares(Shares({nan, 0, nan, 0}, {.temperature = 1}), {{1, 0.5}, {3, 0.5}});
  ExpectShares(Shares({nan, 0, nan, 0}, {.temperature = 1, .top_k = 3}), {{1, 0.5}, {3, 0.5}});
}

TEST(Sampler, OnlyTheFirstOfTheVocabulary) {
  EXPECT_EQ(PickToken(kLogits, 1, {.temperature = 0}, 0.5), 0);
  EXPECT_EQ(PickToken(kLogits, 1, {.temperature = 1}, 0.99), 0);
}

// One row of a window; `next` as SlidingWindow has it.
Continuation Continue(const GenerateOptions& options, int64_t context, std::vector<int32_t> prompt,
                      const SlidingWindow::Logits& next) {
  SlidingWindow window(context, options.vocab, next);
  return Generate(window, {std::move(prompt)}, options)[0];
}

TEST(Sampler, AContinuationEndsBeforeATokenThatEndsTexts) {
  GenerateOptions options;
  options.max_tokens = 6;
  options.vocab = 4;
  options.sampling.temperature = 0;
  std::vector<float> logits(4);
  // After token t comes t + 1.
  const auto next = [&](std::span<const int32_t> tokens) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[static_cast<size_t>((tokens.back() + 1) % 4)] = 1;
    return std::span<const float>(logits);
  };
  const Continuation full = Continue(options, 8, {0}, next);
  EXPECT_EQ(full.tokens, (std::vector<int32_t>{1, 2, 3, 0, 1, 2}));
  EXPECT_EQ(full.end, Continuation::End::kLength);
  options.eos = {7, 3};
  const Continuation ended = Continue(options, 8, {0}, next);
  EXPECT_EQ(ended.tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ended.end, Continuation::End::kEndOfText);
}

// Padded rows and holes of a tokenizer, be they the likeliest.
TEST(Sampler, SomeIdsNeverComeOut) {
  const std::vector<float> logits = {9, 1, 8, 1.5, 9};
  GenerateOptions options;
  options.max_tokens = 200;
  options.vocab = 5;
  options.never = {0, 2, 4};
  const Sampling ways[] = {{.temperature = 0},
                           {.temperature = 1},
                           {.temperature = 1e9},
                           {.temperature = 1, .top_k = 4},
                           {.temperature = 1, .top_p = 0.99},
                           {.temperature = 2, .top_k = 3, .top_p = 0.9}};
  for (const Sampling& way : ways) {
    options.sampling = way;
    const Continuation c =
        Continue(options, 8, {0}, [&](auto) { return std::span<const float>(logits); });
    ASSERT_EQ(c.tokens.size(), 200u);
    std::map<int32_t, int> drawn;
    for (const int32_t id : c.tokens) ++drawn[id];
    EXPECT_EQ(drawn[1] + drawn[3], 200) << way.temperature << " " << way.top_k << " " << way.top_p;
    EXPECT_EQ(drawn[1] > 0, way.temperature > 0) << way.temperature;
  }
}

TEST(Sampler, AWindowLooksAtTheLastOfItsTokens) {
  GenerateOptions options;
  options.max_tokens = 5;
  options.vocab = 10;
  options.sampling.temperature = 0;
  std::vector<std::vector<int32_t>> seen;
  std::vector<float> logits(10);
  const auto next = [&](std::span<const int32_t> tokens) {
    seen.emplace_back(tokens.begin(), tokens.end());
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[static_cast<size_t>(tokens.back() + 1)] = 1;
    return std::span<const float>(logits);
  };
  EXPECT_EQ(Continue(options, 3, {0, 1}, next).tokens, (std::vector<int32_t>{2, 3, 4, 5, 6}));
  EXPECT_EQ(seen, (std::vector<std::vector<int32_t>>{
                      {0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 5}}));
  seen.clear();
  Continue(options, 2, {0, 1, 2, 3}, next);  // A prompt that is longer.
  EXPECT_EQ(seen[0], (std::vector<int32_t>{2, 3}));
}

TEST(Sampler, TokensAreDrawnAsTheHeaderSays) {
  const std::vector<float> logits(100);  // All alike: a token is what was drawn.
  GenerateOptions options;
  options.max_tokens = 20;
  options.vocab = 100;
  options.sampling.temperature = 1;
  options.seed = 5;
  options.stream = "sample";
  options.first = 9;
  const RandomStream random(5, "sample", 9);
  std::vector<int32_t> want;
  for (uint64_t i = 0; i < 20; ++i) {
    want.push_back(PickToken(logits, 100, options.sampling, random.Uniform(i)));
  }
  EXPECT_EQ(Continue(options, 8, {0}, [&](auto) { return std::span<const float>(logits); }).tokens,
            want);
}

}  // namespace
}  // namespace fsdp
