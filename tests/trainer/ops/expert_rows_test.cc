#include "trainer/ops/expert_rows.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;
constexpr DType kI32 = DType::kInt32;

// Choices of tokens: k different experts each, or padding.
struct Case {
  int64_t tokens, per_token, experts;
  Values choices;

  int64_t rows() const { return tokens * per_token; }
};

// The first `busy` experts have all tokens. Each `padding`-th token is padding.
Case RandomCase(int64_t tokens, int64_t k, int64_t experts, int64_t busy, int64_t padding) {
  Case c{tokens, k, experts, {}};
  Random random(tokens + 7 * experts, kF32);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int64_t> all(busy);
    for (int64_t e = 0; e < busy; ++e) all[e] = e;
    for (int64_t j = 0; j < k; ++j) {
      std::swap(all[j], all[random.Integer(j, busy - 1)]);
      c.choices.push_back((t + 1) % padding == 0 ? -1 : static_cast<double>(all[j]));
    }
  }
  return c;
}

std::vector<Case> Cases() {
  return {RandomCase(1, 1, 1, 1, 9),     RandomCase(1, 2, 6, 6, 9),   RandomCase(40, 1, 5, 1, 9),
          RandomCase(37, 3, 6, 6, 5),    RandomCase(70, 4, 16, 9, 3), RandomCase(9, 6, 6, 6, 100),
          RandomCase(700, 2, 33, 20, 7), RandomCase(5, 2, 4, 4, 1)};
}

class ExpertRowsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(ExpertRowsTest, kF32, kBF16, kF16);

TEST_P(ExpertRowsTest, RowsAreSortedByExpertThenByToken) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.per_token << " of " << c.experts);
    const View choices = Input({c.tokens, c.per_token}, c.choices, kI32);
    const View offsets = Output({c.experts + 1}, kI32), tokens = Output({c.rows()}, kI32);
    const View places = Output(choices.shape, kI32);
    const auto call = [&](Stream& s) { GroupRows(s, choices, offsets, tokens, places); };
    Run(call);
    Values want_offsets, want_tokens, want_places(c.choices.size(), -1);
    for (int64_t e = 0; e < c.experts; ++e) {
      want_offsets.push_back(static_cast<double>(want_tokens.size()));
      for (int64_t i = 0; i < c.rows(); ++i) {
        if (c.choices[i] != static_cast<double>(e)) continue;
        want_places[i] = static_cast<double>(want_tokens.size());
        want_tokens.push_back(static_cast<double>(i / c.per_token));
      }
    }
    want_offsets.push_back(static_cast<double>(want_tokens.size()));
    want_tokens.resize(c.choices.size(), 0);
    EXPECT_EQ(Get(offsets), want_offsets);
    EXPECT_EQ(Get(tokens), want_tokens);
    EXPECT_EQ(Get(places), want_places);
    Clear();
  }
}

TEST_P(ExpertRowsTest, CombinesInTheOrderOfChoices) {
  for (const int64_t width : {1, 8, 37, 700}) {
    const Values places{4, 0, 2, -1, -1, -1, 1, 5, 3};
    Random random(3, dtype());
    // Sums of few bits would hide an order.
    const Values rows = random.Vector(7 * width, -1, 1), residual = random.Vector(3 * width);
    const View in = Input({7, width}, rows), at = Input({3, 3}, places, kI32);
    const View base = Input({3, width}, residual), out = Output(base.shape);
    for (const bool has_base : {false, true}) {
      std::optional<ConstView> from;
      if (has_base) from = base;
      Run([&](Stream& s) { CombineRows(s, in, at, from, out); });
      Values want(3 * width);
      for (int64_t i = 0; i < 3 * width; ++i) {
        float sum = has_base ? static_cast<float>(residual[i]) : 0;
        for (int64_t j = 0; j < 3; ++j) {
          const auto place = static_cast<int64_t>(places[i / width * 3 + j]);
          if (place >= 0) sum += static_cast<float>(rows[place * width + i % width]);
        }
        want[i] = RoundTo(dtype(), sum);
      }
      EXPECT_EQ(Get(out), want);
      if (!has_base) continue;
      Run([&](Stream& s) { CombineRows(s, in, at, base, base); });
      EXPECT_EQ(Get(base), want) << "in place";
    }
    Clear();
  }
}

TEST_P(ExpertRowsTest, RefusesWrongArguments) {
  const View choices = Input({2, 2}, {0, 1, 1, 0}, kI32), offsets = Output({3}, kI32);
  const View tokens = Output({4}, kI32), places = Output({2, 2}, kI32);
  ExpectRefused([&](Stream& s) { GroupRows(s, choices, Output({1}, kI32), tokens, places); },
                "[group_rows] offsets has less than two elements");
  ExpectRefused([&](Stream& s) { GroupRows(s, choices, offsets, offsets, places); },
                "[group_rows] tokens is");
  ExpectRefused([&](Stream& s) { GroupRows(s, choices, offsets, tokens, tokens); },
                "[group_rows] places is");
  ExpectRefused([&](Stream& s) { GroupRows(s, choices, offsets, tokens, choices); },
                "places and choices overlap");
  const View rows = Output({4, 3}), out = Output({2, 3}), narrow = Output({2, 2});
  ExpectRefused([&](Stream& s) { CombineRows(s, rows, places, {}, narrow); },
                "[combine_rows] rows is");
  ExpectRefused([&](Stream& s) { CombineRows(s, rows, places, narrow, out); },
                "[combine_rows] base is");
  ExpectRefused([&](Stream& s) { CombineRows(s, rows, choices, out, rows); },
                "[combine_rows] places is");
  ExpectRefused([&](Stream& s) { CombineRows(s, out, places, {}, out); }, "out and rows overlap");
}

TEST_P(ExpertRowsTest, BitsDoNotDependOnThreads) {
  const Case c = RandomCase(90, 4, 16, 11, 5);
  const View choices = Input({c.tokens, c.per_token}, c.choices, kI32);
  const View offsets = Output({c.experts + 1}, kI32), tokens = Output({c.rows()}, kI32);
  const View places = Output(choices.shape, kI32), out = Output({c.tokens, 19});
  const View rows = Input({c.rows(), 19}, Random(2, dtype()).Vector(c.rows() * 19));
  ExpectSameBits(
      [&](Stream& s) {
        GroupRows(s, choices, offsets, tokens, places);
        CombineRows(s, rows, places, {}, out);
      },
      {offsets, tokens, places, out});
}

}  // namespace
}  // namespace fsdp
