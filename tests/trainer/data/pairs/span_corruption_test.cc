#include "trainer/data/pairs/span_corruption.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

// The lengths of compute_input_and_target_lengths in transformers' run_t5_mlm_flax.py, which
// follows the authors' random_spans_helper.
TEST(SpanCorruption, LengthsAreTheAuthors) {
  const struct {
    SpanOptions options;
    int64_t input, text, target;
  } cases[] = {{{}, 512, 568, 114},    {{}, 128, 141, 29},        {{}, 1024, 1137, 229},
               {{}, 64, 70, 14},       {{0.5, 3}, 512, 767, 513}, {{0.15, 8}, 512, 588, 100},
               {{0.3, 1}, 100, 99, 61}};
  for (const auto& c : cases) {
    const std::optional<SpanLengths> lengths = LongestText(c.options, c.input);
    ASSERT_TRUE(lengths.has_value());
    EXPECT_EQ(lengths->length, c.text) << c.input;
    EXPECT_EQ(lengths->target(), c.target) << c.input;
    EXPECT_LE(lengths->input(), c.input);
    EXPECT_GT(SpansOf(c.options, lengths->length + 1).input(), c.input);
  }
  EXPECT_FALSE(LongestText({}, 2).has_value());
  EXPECT_EQ(LongestText({}, 3)->length, 2);
}

// Each of the ways to cut 6 into 3 parts comes as often as any other.
TEST(SpanCorruption, PartsAreDrawnEvenly) {
  std::map<std::vector<int64_t>, int> seen;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const RandomStream random(5, "parts", static_cast<uint64_t>(i));
    RandomParts parts(6, 3);
    std::vector<int64_t> lengths;
    for (int k = 0; k < 3; ++k) {
      lengths.push_back(
          parts.Next([&](uint64_t draw, uint64_t n) { return random.Below(draw, n); }));
    }
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), 6);
    ++seen[lengths];
  }
  ASSERT_EQ(seen.size(), 10u);
  for (const auto& [lengths, times] : seen) EXPECT_NEAR(times, kDraws / 10, 5 * 45);
}

struct Row {
  explicit Row(const SpanLengths& spans)
      : input(static_cast<size_t>(spans.input() + 2), -1),
        decoder(static_cast<size_t>(spans.target() + 3), -1),
        target(decoder.size(), -1),
        weights(decoder.size(), -1) {}
  PairRow view() { return {input, decoder, target, weights, length}; }
  std::vector<int32_t> input, decoder, target;
  std::vector<float> weights;
  int32_t length = -1;
};

// Put together again, an input and its target are the text.
TEST(SpanCorruption, NothingIsLost) {
  const SpanLengths spans = SpansOf({}, 70);
  std::vector<int32_t> text(70), sentinels(static_cast<size_t>(spans.spans));
  std::iota(text.begin(), text.end(), 100);
  std::iota(sentinels.begin(), sentinels.end(), 1000);
  std::map<std::vector<int32_t>, int> inputs;
  for (int64_t sample = 0; sample < 50; ++sample) {
    Row row(spans), again(spans), other(spans);
    CorruptSpans(text, spans, sentinels, 1, /*seed=*/3, sample, row.view());
    CorruptSpans(text, spans, sentinels, 1, /*seed=*/3, sample, again.view());
    CorruptSpans(text, spans, sentinels, 1, /*seed=*/4, sample, other.view());
    EXPECT_EQ(row.input, again.input);
    EXPECT_EQ(row.target, again.target);
    EXPECT_NE(row.input, other.input);
    ++inputs[row.input];
    ASSERT_EQ(row.length, spans.input());
    EXPECT_EQ(row.input[static_cast<size_t>(row.length) - 1], 1);
    EXPECT_EQ(row.target[static_cast<size_t>(spans.target()) - 1], 1);
    std::vector<int32_t> whole;
    size_t at = 0;
    for (int64_t i = 0; i + 1 < row.length; ++i) {
      const int32_t token = row.input[static_cast<size_t>(i)];
      if (token < 1000) {
        whole.push_back(token);
        continue;
      }
      ASSERT_EQ(row.target[at++], token);
      const size_t before = whole.size();
      for (; row.target[at] >= 100 && row.target[at] < 1000; ++at) whole.push_back(row.target[at]);
      EXPECT_GT(whole.size(), before);
    }
    EXPECT_EQ(whole, text);
    EXPECT_EQ(row.decoder[0], kPadToken);
    EXPECT_EQ(row.decoder[1], 1000);
    EXPECT_EQ(std::accumulate(row.weights.begin(), row.weights.end(), 0.0f),
              static_cast<float>(spans.target()));
  }
  EXPECT_EQ(inputs.size(), 50u);  // Each sample loses others.
}

}  // namespace
}  // namespace fsdp
