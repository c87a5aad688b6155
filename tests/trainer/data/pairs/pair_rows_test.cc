#include "trainer/data/pairs/pair_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/loader.h"

namespace fsdp {
namespace {

using Ints = std::vector<int32_t>;

// Token i is i, up to where it would be none of the vocabulary.
class Counting final : public TokenSource {
 public:
  Counting(int64_t size, int32_t vocab) : size_(size), vocab_(vocab) {}
  int64_t size() const override { return size_; }
  int32_t vocab_size() const override { return vocab_; }
  std::optional<int32_t> eot() const override { return 1; }
  void Read(int64_t offset, std::span<int32_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<int32_t>((offset + static_cast<int64_t>(i)) % vocab_);
    }
  }
  std::string Describe() const override { return "counted"; }
  std::string Where(int64_t offset) const override { return "place " + std::to_string(offset); }
  std::vector<DataFile> Files() const override { return {}; }

 private:
  int64_t size_;
  int32_t vocab_;
};

// Pair i: an input of `lengths[i].first` tokens 10 + i and an end, a target of as many 50 + i.
class Pairs final : public SampleStore {
 public:
  explicit Pairs(std::vector<std::pair<int, int>> lengths) : lengths_(std::move(lengths)) {
    begins_.push_back(0);
    for (const auto& [input, target] : lengths_) begins_.push_back(begins_.back() + input + target);
  }
  int64_t size() const override { return std::ssize(lengths_); }
  int64_t Begin(int64_t i) const override { return begins_[static_cast<size_t>(i)]; }
  int64_t Targets(int64_t i, int64_t n) const override {
    return std::max<int64_t>(0, n - lengths_[static_cast<size_t>(i)].first);
  }
  void Read(int64_t i, std::span<int32_t> tokens, std::span<float>) const override {
    const auto [input, target] = lengths_[static_cast<size_t>(i)];
    for (int t = 0; t < input + target; ++t) {
      const bool end = t + 1 == input || t + 1 == input + target;
      tokens[static_cast<size_t>(t)] = end ? 1 : static_cast<int32_t>((t < input ? 10 : 50) + i);
    }
  }
  std::string Noun() const override { return "pair"; }
  std::string Describe() const override { return "pairs"; }
  std::string Where(int64_t i) const override { return "line " + std::to_string(i + 1); }
  TokenPlace PlaceOf(int64_t i, int64_t) const override { return {Where(i)}; }

 private:
  std::vector<std::pair<int, int>> lengths_;
  std::vector<int64_t> begins_;
};

struct Filled {
  Filled(const RowSource& rows, const PairLengths& lengths, const std::vector<int64_t>& samples)
      : spec(PairInputs(lengths.input, lengths.target, lengths.vocab_size)),
        bytes(static_cast<size_t>(BatchBytes(spec, std::ssize(samples))), std::byte{0x5a}),
        batch(CarveBatch(spec, std::ssize(samples), bytes.data())) {
    rows.CheckViews(batch, std::ssize(samples));
    for (size_t row = 0; row < samples.size(); ++row) {
      rows.Fill(samples[row], static_cast<int64_t>(row), batch);
    }
    rows.Derive(batch);
  }
  Ints Input(int64_t row) const { return Of(RowOf(batch, row).input); }
  Ints Target(int64_t row) const { return Of(RowOf(batch, row).target); }
  int64_t Counted(int64_t row) const {
    const PairRow view = RowOf(batch, row);
    return std::count(view.weights.begin(), view.weights.end(), 1.0f);
  }
  static Ints Of(std::span<const int32_t> tokens) { return {tokens.begin(), tokens.end()}; }

  BatchSpec spec;
  std::vector<std::byte> bytes;
  Batch batch;
};

constexpr PairLengths kLengths{20, 9, 400};
constexpr PairLengths kSpanLengths{40, 12, 400};  // A text of 44 loses 7 tokens in 2 spans.

std::unique_ptr<SpanRows> Spans(int64_t tokens, bool shuffle, uint64_t seed, int32_t vocab = 300) {
  const SpanLengths spans = *LongestText({}, kSpanLengths.input);
  Ints sentinels(static_cast<size_t>(spans.spans));
  std::iota(sentinels.begin(), sentinels.end(), 380);
  return std::make_unique<SpanRows>(
      std::vector<SpanRows::Source>{{std::make_shared<Counting>(tokens, vocab), 1, 1}},
      kSpanLengths, spans, sentinels, shuffle, seed);
}

TEST(SpanRows, AreTextsOfWhichEachLosesItsOwn) {
  const auto rows = Spans(44 * 10 + 5, /*shuffle=*/false, 7);
  const SpanLengths spans = *LongestText({}, kSpanLengths.input);
  ASSERT_EQ(spans.length, 44);
  EXPECT_EQ(rows->Rows(0), 10);
  EXPECT_EQ(rows->Targets(3, 8), 5 * spans.target());
  EXPECT_EQ(rows->InputTokens(3, 8), 5 * (spans.input() + spans.target()));
  // Samples of the first epoch, the first of the next, a row left over.
  const Filled filled(*rows, kSpanLengths, {0, 1, 10, kNoSample});
  EXPECT_NE(filled.Input(0), filled.Input(2));  // The same text.
  const auto kept = [&](int64_t row) {
    std::set<int32_t> tokens;
    for (const Ints& part : {filled.Input(row), filled.Target(row)}) {
      for (const int32_t token : part) {
        if (token > 1 && token < 380) tokens.insert(token);
      }
    }
    return tokens;
  };
  EXPECT_EQ(kept(0), kept(2));
  EXPECT_EQ(*kept(1).begin(), 44);
  EXPECT_EQ(kept(1).size(), 44u);
  EXPECT_EQ(filled.Counted(0), spans.target());
  EXPECT_EQ(filled.Counted(3), 0);
  // One row does not depend on the others.
  EXPECT_EQ(Filled(*rows, kSpanLengths, {10}).Input(0), filled.Input(2));
}

TEST(SpanRows, SayWhatIsWrong) {
  const auto error = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const DataError& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(error([] { Spans(44, false, 7); }),
            "data: counted: 44 tokens, but one sample takes 45: give more data, a shorter "
            "data.seq_len or another data.valid");
  const auto rows = Spans(1000, false, 7, /*vocab=*/500);
  EXPECT_EQ(error([&] { Filled(*rows, kSpanLengths, {9}); }),
            "data: place 400: token 400 is outside the vocabulary of 400 tokens: this data needs a "
            "larger model.vocab_size, at most 500, or is another tokenizer's (sample 9)");
}

TEST(PairRows, ArePaddedAndCounted) {
  const auto store =
      std::make_shared<Pairs>(std::vector<std::pair<int, int>>{{3, 2}, {20, 9}, {5, 4}, {1, 1}});
  const PairRows rows({{PairRows::Fit(store, kLengths, TooLong::kError)}}, kLengths,
                      /*shuffle=*/false, 3);
  EXPECT_EQ(rows.Rows(0), 4);
  EXPECT_EQ(rows.Targets(0, 5), 2 + 9 + 4 + 1 + 2);
  EXPECT_EQ(rows.InputTokens(0, 5), (3 + 2) + (20 + 9) + (5 + 4) + (1 + 1) + (3 + 2));
  const Filled filled(rows, kLengths, {0, 2, 5, kNoSample});
  Ints want(20);
  want[0] = want[1] = 10;
  want[2] = 1;
  EXPECT_EQ(filled.Input(0), want);
  EXPECT_EQ(filled.Target(0), (Ints{50, 1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(filled.Target(1), (Ints{52, 52, 52, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(Ints({RowOf(filled.batch, 0).length, RowOf(filled.batch, 2).length,
                  RowOf(filled.batch, 3).length}),
            (Ints{3, 20, 0}));
  EXPECT_EQ(filled.Counted(2), 9);
  EXPECT_EQ(filled.Counted(3), 0);
}

TEST(PairRows, EachComesOnceAnEpoch) {
  const auto store = std::make_shared<Pairs>(std::vector<std::pair<int, int>>(7, {2, 2}));
  const PairRows rows({{PairRows::Fit(store, kLengths, TooLong::kError)}}, kLengths,
                      /*shuffle=*/true, 3);
  std::vector<Ints> epochs;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    Ints seen;
    for (int64_t i = 0; i < 7; ++i) {
      seen.push_back(Filled(rows, kLengths, {7 * epoch + i}).Input(0)[0]);
    }
    epochs.push_back(seen);
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, (Ints{10, 11, 12, 13, 14, 15, 16}));
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(PairRows, LongOnesAreAnErrorCutOrDropped) {
  const auto store =
      std::make_shared<Pairs>(std::vector<std::pair<int, int>>{{3, 2}, {21, 4}, {4, 12}, {2, 2}});
  const auto fit = [&](TooLong too_long) { return PairRows::Fit(store, kLengths, too_long); };
  try {
    fit(TooLong::kError);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(),
                 "data: line 2: an input of 21 tokens, more than data.seq_len = 20: raise it, or "
                 "let data.too_long be cut or drop");
  }
  const PairRows::Fitted dropped = fit(TooLong::kDrop), cut = fit(TooLong::kCut);
  EXPECT_EQ(dropped.samples, (Ints{0, 3}));
  EXPECT_EQ(dropped.longer, 2);
  EXPECT_EQ(cut.samples, (Ints{0, 1, 2, 3}));
  const PairRows rows({{cut}}, kLengths, /*shuffle=*/false, 3);
  const Filled filled(rows, kLengths, {1, 2});
  EXPECT_EQ(filled.Input(0).back(), 1);  // Both ended all the same.
  EXPECT_EQ(filled.Input(0)[18], 11);
  EXPECT_EQ(filled.Target(1), (Ints{52, 52, 52, 52, 52, 52, 52, 52, 1}));
  EXPECT_EQ(rows.Targets(0, 4), 2 + 4 + 9 + 2);
  EXPECT_EQ(rows.InputTokens(0, 4), (3 + 2) + (20 + 4) + (4 + 9) + (2 + 2));
  EXPECT_THROW(PairRows::Fit(std::make_shared<Pairs>(std::vector<std::pair<int, int>>{{30, 2}}),
                             kLengths, TooLong::kDrop),
               DataError);
}

TEST(PairRows, TheLastAreHeldOut) {
  const auto store = std::make_shared<Pairs>(std::vector<std::pair<int, int>>(10, {3, 2}));
  const PairRows::Fitted all = PairRows::Fit(store, kLengths, TooLong::kError);
  const PairRows::Parts parts = PairRows::HoldOut(all, 0.2);
  EXPECT_EQ(parts.train.samples, (Ints{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(parts.valid.samples, (Ints{8, 9}));
  EXPECT_THROW(PairRows::HoldOut(all, 0.01), DataError);
}

// The same samples on one rank and on three.
TEST(PairRows, AreDealtAsTokensAre) {
  const std::shared_ptr<const RowSource> rows = Spans(2000, /*shuffle=*/true, 9);
  const TrainLoader alone(rows, {.global_batch_size = 6, .micro_batch_size = 6}, 3);
  const TrainLoader shared(rows, {.global_batch_size = 6, .micro_batch_size = 1, .data_ranks = 3},
                           3);
  const BatchSpec spec =
      PairInputs(kSpanLengths.input, kSpanLengths.target, kSpanLengths.vocab_size);
  std::vector<std::byte> all(static_cast<size_t>(BatchBytes(spec, 6))),
      one(static_cast<size_t>(BatchBytes(spec, 1)));
  const Batch whole = CarveBatch(spec, 6, all.data()), part = CarveBatch(spec, 1, one.data());
  alone.MicroBatch(4, 0, 0, whole);
  EXPECT_EQ(alone.TargetsOfStep(4), 6 * LongestText({}, kSpanLengths.input)->target());
  for (int64_t m = 0; m < 2; ++m) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      shared.MicroBatch(4, m, rank, part);
      EXPECT_EQ(Filled::Of(RowOf(part, 0).input), Filled::Of(RowOf(whole, 3 * m + rank).input));
      EXPECT_EQ(Filled::Of(RowOf(part, 0).target), Filled::Of(RowOf(whole, 3 * m + rank).target));
    }
  }
}

}  // namespace
}  // namespace fsdp
