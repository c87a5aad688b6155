// Against the sampler without a cache, which looks at the last of its tokens each time.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/shape.h"
#include "tests/testing/tiny_run.h"
#include "trainer/generate/generator.h"
#include "trainer/nn/initial_values.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

using testing::TinyRun;

StoredModel Stored(const ModelShape& shape) {
  StoredModel stored;
  stored.shape = shape;
  stored.model = MakeModel(shape);
  for (const ModelSegment& segment : stored.model->segments()) {
    for (Parameter* p : segment.parameters) p->Freeze();
  }
  stored.weights.parameters = [](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, 5, begin, values);
    for (float& value : values) value *= p.shape().rank() == 2 ? 8.0f : 1.0f;
  };
  return stored;
}

class SlidingRowsTest : public ::testing::TestWithParam<bool> {
 protected:
  SlidingRowsTest() {
    TinyRun run;
    if (GetParam()) run.llama = TinyRun::TinyLlama();
    shape_ = run.shape();
  }
  static constexpr int64_t kCapacity = 6;

  ModelShape shape_;
};

// Three rows that end at different tokens: two slide, at different times, and one is done before.
TEST_P(SlidingRowsTest, GoOnAsTheSamplerWithoutACache) {
  Generator cached(Stored(shape_), {.rows = 3, .capacity = kCapacity});
  Generator whole(Stored(shape_), {.rows = 1, .capacity = kCapacity});
  SlidingRows rows(cached);
  const auto vocab = static_cast<size_t>(VocabSize(shape_));
  const auto token = [&](size_t row, size_t at) {
    return static_cast<int32_t>((7 * row + 5 * at * at + 3) % vocab);
  };
  const auto expect = [&](std::span<const float> got, size_t row, size_t length) {
    SlidingWindow window(kCapacity, static_cast<int64_t>(vocab),
                         [&](auto tokens) { return whole.Start(0, tokens); });
    std::vector<int32_t> tokens;
    for (size_t at = 0; at < length; ++at) tokens.push_back(token(row, at));
    const std::span<const float> want = window.Start(0, tokens);
    ASSERT_EQ(got.size(), want.size());
    float high = 0;
    for (const float v : want) high = std::max(high, std::abs(v));
    for (size_t i = 0; i < want.size(); ++i) {
      // The same pass gives the same bits; a cache adds up otherwise.
      const float tolerance = static_cast<int64_t>(length) > kCapacity ? 0 : 2e-5f * high;
      ASSERT_NEAR(got[i], want[i], tolerance) << "row " << row << ", token " << length;
    }
  };
  const size_t first[] = {2, 5, 1}, last[] = {14, 12, 4};
  for (size_t row = 0; row < 3; ++row) {
    std::vector<int32_t> prompt;
    for (size_t at = 0; at < first[row]; ++at) prompt.push_back(token(row, at));
    expect(rows.Start(static_cast<int64_t>(row), prompt), row, first[row]);
  }
  for (size_t i = 0; i < 12; ++i) {
    std::vector<int32_t> tokens, positions;
    for (size_t row = 0; row < 3; ++row) {
      const size_t at = std::min(first[row] + i, last[row] - 1);
      tokens.push_back(token(row, at));
      positions.push_back(static_cast<int32_t>(at));
    }
    EXPECT_EQ(rows.slid(), i > 1);
    const std::span<const float> all = rows.Next(tokens, positions);
    for (size_t row = 0; row < 3; ++row) {
      if (first[row] + i >= last[row]) continue;  // Done: nobody looks.
      expect(all.subspan(row * vocab, vocab), row, first[row] + i + 1);
    }
  }
}

// The whole loop, token for token.
TEST_P(SlidingRowsTest, GenerateAsTheSamplerWithoutACache) {
  Generator cached(Stored(shape_), {.rows = 2, .capacity = kCapacity});
  Generator whole(Stored(shape_), {.rows = 1, .capacity = kCapacity});
  SlidingRows rows(cached);
  SlidingWindow window(kCapacity, VocabSize(shape_),
                       [&](auto tokens) { return whole.Start(0, tokens); });
  GenerateOptions options;
  options.max_tokens = 20;
  options.vocab = static_cast<int32_t>(VocabSize(shape_));
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4, 5, 6, 7, 8}};
  const std::vector<Continuation> got = Generate(rows, prompts, options);
  for (size_t p = 0; p < prompts.size(); ++p) {
    options.first = p;
    const Continuation want = Generate(window, {prompts[p]}, options)[0];
    EXPECT_EQ(got[p].tokens, want.tokens);
    EXPECT_EQ(got[p].tokens.size(), 20u);
    EXPECT_EQ(got[p].end, Continuation::End::kLength);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SlidingRowsTest, ::testing::Bool());

}  // namespace
}  // namespace fsdp
