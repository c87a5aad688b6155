// The loaders with whole samples in their rows: data.packing samples and none.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/trainer/data/host_batch.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/data/loader.h"
#include "trainer/data/samples/document_store.h"
#include "trainer/data/samples/fitted_samples.h"
#include "trainer/data/synthetic/synthetic.h"
#include "trainer/data/text/text_source.h"

namespace fsdp {
namespace {

using testing::HostBatch;

constexpr int64_t kSeqLen = 12;
constexpr int32_t kVocab = 128;

LoaderOptions Options(Packing packing, int64_t global, int64_t micro, int64_t ranks) {
  LoaderOptions options{.seq_len = kSeqLen,
                        .global_batch_size = global,
                        .micro_batch_size = micro,
                        .data_ranks = ranks,
                        .vocab_size = kVocab};
  options.packing = packing;
  return options;
}

std::shared_ptr<const SampleSource> Documents(const std::string& text, int64_t seq_len = kSeqLen) {
  const std::string path = testing::FreshDirectory("whole") + "/a.txt";
  std::ofstream(path, std::ios::binary) << text;
  const auto source = std::make_shared<TextSource>(std::vector<std::string>{path});
  return std::make_shared<FittedSamples>(std::make_shared<DocumentStore>(WithEot(source, '.')),
                                         seq_len, TooLong::kError);
}

// They have 2 to 12 tokens and differ: the first two tell which it is.
std::string ManyDocuments(int count) {
  const RandomStream random(5, "documents");
  std::string text;
  for (int i = 0; i < count; ++i) {
    const uint64_t more = random.Below(static_cast<uint64_t>(i), 10);
    text += {static_cast<char>('A' + i / 26), static_cast<char>('a' + i % 26)};
    text += std::string(more == 0 ? 0 : more - 1, '-') + ".";
  }
  return text;
}

struct Row {
  std::vector<int32_t> tokens, targets, positions;
  std::vector<float> weights;
  auto operator<=>(const Row&) const = default;

  int64_t Targets() const { return std::count(weights.begin(), weights.end(), 1.0f); }
  std::string Text() const { return {tokens.begin(), tokens.end()}; }
};

// Row by sample of a step or of an evaluation's batch, over all micro-batches and ranks.
template <typename Loader>
std::map<int64_t, Row> Gather(const Loader& loader, const LoaderOptions& options, int64_t step) {
  std::map<int64_t, Row> rows;
  for (int64_t m = 0; m < loader.MicroBatches(); ++m) {
    for (int64_t rank = 0; rank < options.data_ranks; ++rank) {
      HostBatch batch(options.micro_batch_size, kSeqLen);
      loader.MicroBatch(step, m, rank, batch.Views());
      for (int64_t row = 0; row < options.micro_batch_size; ++row) {
        const int64_t sample = loader.SampleOf(step, m, rank, row);
        const auto part = [&](const auto& all) {
          return std::vector(all.begin() + row * kSeqLen, all.begin() + (row + 1) * kSeqLen);
        };
        const Row got{part(batch.tokens), part(batch.targets), part(batch.positions),
                      part(batch.weights)};
        if (sample == kNoSample) {
          EXPECT_EQ(got.Targets(), 0);
          EXPECT_EQ(batch.lengths[row], 0);
        } else {
          // Padding is tokens and positions of 0; a document of one token has another token.
          size_t end = kSeqLen;
          while (end > 0 && got.positions[end - 1] == 0 && got.tokens[end - 1] == 0) --end;
          EXPECT_EQ(batch.lengths[row], end);
          EXPECT_TRUE(rows.emplace(sample, got).second) << "dealt twice: " << sample;
        }
      }
    }
  }
  return rows;
}

// The documents of a row, each held to its own positions, targets and weights.
std::vector<std::string> DocumentsIn(const Row& row) {
  const std::string text = row.Text();
  std::vector<std::string> documents;
  size_t at = 0;
  while (at < text.size() && text[at] != 0) {
    const size_t n = text.find('.', at) + 1 - at;
    documents.push_back(text.substr(at, n));
    for (size_t i = 0; i < n; ++i) {
      const bool last = i + 1 == n;
      EXPECT_EQ(row.positions[at + i], i);
      EXPECT_EQ(row.weights[at + i], last ? 0 : 1);
      EXPECT_EQ(row.targets[at + i], last ? 0 : text[at + i + 1]);
    }
    at += n;
  }
  for (; at < text.size(); ++at) {  // Each sees itself alone.
    EXPECT_EQ(text[at], 0);
    EXPECT_EQ(row.positions[at], 0);
    EXPECT_EQ(row.targets[at], 0);
    EXPECT_EQ(row.weights[at], 0);
  }
  return documents;
}

TEST(WholeSamples, LieBesideEachOther) {
  const auto documents = Documents("ab.c.defghijklm.nop.");
  const LoaderOptions options = Options(Packing::kSamples, 1, 1, 1);
  const TrainLoader loader(WeightedSources{{nullptr, 1, documents}}, options, false, 0);
  EXPECT_EQ(dynamic_cast<const Samples&>(loader.rows()).Rows(0), 2);
  EXPECT_EQ(dynamic_cast<const Samples&>(loader.rows()).Tokens(0), 20);
  EXPECT_EQ(dynamic_cast<const Samples&>(loader.rows()).WholeSamples(0), 4);
  const Row full = Gather(loader, options, 1).at(0), row = Gather(loader, options, 2).at(1);
  EXPECT_EQ(row.Text(), std::string("ab.c.nop.\0\0\0", 12));
  EXPECT_EQ(row.targets, (std::vector<int32_t>{'b', '.', 0, '.', 0, 'o', 'p', '.', 0, 0, 0, 0}));
  EXPECT_EQ(row.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 0, 0}));
  EXPECT_EQ(row.weights, (std::vector<float>{1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(full.Text(), std::string("defghijklm.\0", 12));
}

// (packing, global, micro, ranks).
using Shape4 = std::tuple<Packing, int64_t, int64_t, int64_t>;
class WholeDealTest : public ::testing::TestWithParam<Shape4> {};

TEST_P(WholeDealTest, WorldsAndMicroBatchesChangeNothing) {
  const auto [packing, global, micro, ranks] = GetParam();
  const WeightedSources sources = {{nullptr, 1, Documents(ManyDocuments(100))}};
  const LoaderOptions alone = Options(packing, global, global, 1),
                      options = Options(packing, global, micro, ranks);
  const TrainLoader reference(sources, alone, true, 8);
  const int64_t rows = dynamic_cast<const Samples&>(reference.rows()).Rows(0);
  std::multiset<std::string> seen;
  for (int64_t step = 1; (step - 1) * global < 2 * rows; ++step) {
    // Each made anew, as in a run that is resumed here.
    const TrainLoader loader(sources, options, true, 8);
    const auto got = Gather(loader, options, step);
    EXPECT_EQ(got, Gather(reference, alone, step));
    EXPECT_EQ(std::ssize(got), global);
    int64_t targets = 0, tokens = 0;
    for (const auto& [sample, row] : got) {
      targets += row.Targets();
      const auto documents = DocumentsIn(row);
      for (const std::string& document : documents) tokens += std::ssize(document);
      EXPECT_TRUE(packing == Packing::kSamples || documents.size() == 1);
      if (sample < 2 * rows) seen.insert(documents.begin(), documents.end());
    }
    EXPECT_EQ(loader.TargetsOfStep(step), targets);
    EXPECT_EQ(loader.InputTokensOfStep(step), tokens);  // No padding.
  }
  // Two epochs are every document twice.
  EXPECT_EQ(seen.size(), 200u);
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 100u);
  for (const std::string& document : seen) EXPECT_EQ(seen.count(document), 2u);
  EXPECT_NE(Gather(TrainLoader(sources, alone, true, 9), alone, 1), Gather(reference, alone, 1));
}

TEST_P(WholeDealTest, EvaluationIsTheSameRowsEverywhere) {
  const auto [packing, global, micro, ranks] = GetParam();
  const WeightedSources sources = {{nullptr, 1, Documents(ManyDocuments(100))}};
  const LoaderOptions options = Options(packing, global, micro, ranks);
  const EvalLoader all(sources, options, INT64_MAX);
  std::set<std::string> seen;
  int64_t targets = 0;
  for (int64_t b = 0; b < all.Batches(); ++b) {
    int64_t here = 0;
    for (const auto& [sample, row] : Gather(all, options, b)) {
      here += row.Targets();
      for (const std::string& document : DocumentsIn(row)) {
        EXPECT_TRUE(seen.insert(document).second) << document;
      }
    }
    EXPECT_EQ(all.TargetsOfBatch(b), here);
    targets += here;
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(all.Targets(), targets);
  EXPECT_EQ(all.Targets(), std::ssize(ManyDocuments(100)) - 100);
  const LoaderOptions alone = Options(packing, global, global, 1);
  EXPECT_EQ(Gather(EvalLoader(sources, options, 1), options, 0),
            Gather(EvalLoader(sources, alone, 1), alone, 0));
}

INSTANTIATE_TEST_SUITE_P(AnyShape, WholeDealTest,
                         ::testing::Combine(::testing::Values(Packing::kSamples, Packing::kNone),
                                            ::testing::Values(1, 7, 33),
                                            ::testing::Values(1, 4, 40),
                                            ::testing::Values(1, 2, 3)));

TEST(WholeSamples, OfAMixtureShareRowsWithTheirOwn) {
  const auto source = [](uint64_t seed, int64_t tokens) {
    const auto made = std::make_shared<SyntheticSource>(
        SyntheticOptions{.vocab_size = 8, .num_tokens = tokens, .noise = 1, .seed = seed});
    return std::make_shared<FittedSamples>(std::make_shared<DocumentStore>(WithEot(made, 3)),
                                           kSeqLen, TooLong::kCut);
  };
  const WeightedSources sources = {{nullptr, 3, source(1, 900)}, {nullptr, 1, source(2, 200)}};
  const LoaderOptions options = Options(Packing::kSamples, 8, 3, 2);
  const TrainLoader loader(sources, options, true, 8);
  // Each has the rows that it has by itself.
  std::vector<std::set<std::vector<int32_t>>> rows(2);
  for (int64_t k = 0; k < 2; ++k) {
    const PackedRows packed(*sources[k].whole, kSeqLen, Packing::kSamples, true,
                            k == 0 ? 8 : HashBytes("data.mixture.source", 9));
    EXPECT_EQ(dynamic_cast<const Samples&>(loader.rows()).Rows(k), packed.Rows());
    for (int64_t i = 0; i < packed.Rows(); ++i) {
      std::vector<int32_t> tokens;
      for (const int32_t sample : packed.SamplesOf(i)) {
        std::vector<int32_t> one(static_cast<size_t>(sources[k].whole->Length(sample)));
        std::vector<float> weights(one.size());
        sources[k].whole->Read(sample, one, weights);
        tokens.insert(tokens.end(), one.begin(), one.end());
      }
      tokens.resize(kSeqLen);
      rows[k].insert(tokens);
    }
  }
  for (int64_t step = 1; step <= 20; ++step) {
    for (const auto& [sample, row] : Gather(loader, options, step)) {
      const auto k = dynamic_cast<const Samples&>(loader.rows()).mixture()(sample).source;
      EXPECT_EQ(rows[k].count(row.tokens), 1u) << sample;
    }
  }
}

// Samples that say which of their tokens are targets: of 2 to 6 tokens, every third one, or none.
class Masked : public SampleSource {
 public:
  explicit Masked(bool any) : any_(any) {}

  int64_t size() const override { return 40; }
  int32_t Length(int64_t i) const override { return static_cast<int32_t>(2 + i % 5); }
  int64_t Targets(int64_t i) const override {
    int64_t targets = 0;
    for (int64_t t = 0; t < Length(i); ++t) targets += IsTarget(i, t);
    return targets;
  }
  std::string Describe() const override { return "masked"; }
  void Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const override {
    for (size_t t = 0; t < tokens.size(); ++t) {
      tokens[t] = static_cast<int32_t>(1 + i);
      weights[t] = IsTarget(i, static_cast<int64_t>(t)) ? 1 : 0;
    }
  }
  TokenPlace PlaceOf(int64_t i, int64_t token) const override {
    return {"masked sample " + std::to_string(i) + ", token " + std::to_string(token)};
  }

 private:
  bool IsTarget(int64_t i, int64_t t) const {
    return any_ && t + 1 < Length(i) && (i + t) % 3 == 0;
  }

  bool any_;
};

TEST(WholeSamples, BringTheirOwnMasks) {
  const auto masked = std::make_shared<Masked>(true);
  LoaderOptions options = Options(Packing::kSamples, 5, 2, 2);
  const TrainLoader loader(WeightedSources{{nullptr, 1, masked}}, options, true, 3);
  int64_t all = 0;
  for (int64_t step = 1; step <= 10; ++step) {
    int64_t targets = 0;
    for (const auto& [sample, row] : Gather(loader, options, step)) {
      targets += row.Targets();
      for (size_t t = 0; t < kSeqLen; ++t) {
        if (row.tokens[t] == 0) continue;
        const int64_t i = row.tokens[t] - 1;
        const bool target =
            row.positions[t] + 1 < masked->Length(i) && (i + row.positions[t]) % 3 == 0;
        EXPECT_EQ(row.weights[t], target ? 1 : 0);
      }
    }
    EXPECT_EQ(loader.TargetsOfStep(step), targets);
    all += targets;
  }
  EXPECT_GT(all, 50);
  const TrainLoader none(WeightedSources{{nullptr, 1, std::make_shared<Masked>(false)}}, options,
                         true, 3);
  try {
    none.TargetsOfStep(4);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "data: step 4 has no token that is a target");
  }
  options.vocab_size = 20;
  const TrainLoader narrow(WeightedSources{{nullptr, 1, masked}}, options, false, 3);
  try {
    for (int64_t step = 1; step <= 10; ++step) Gather(narrow, options, step);
    FAIL();
  } catch (const DataError& error) {
    const std::string what = error.what();
    // The first row that has one of 19 and more, whichever of its samples that is.
    const int i = std::stoi(what.substr(std::string("data: masked sample ").size()));
    EXPECT_TRUE(what.starts_with("data: masked sample " + std::to_string(i) + ", token 0: token " +
                                 std::to_string(i + 1) + " is outside the vocabulary"))
        << what;
    EXPECT_GE(i, 19);
    EXPECT_NE(what.find(" (sample "), std::string::npos) << what;
  }
}

TEST(WholeSamples, TokenOutsideTheVocabularyNamesItsPlace) {
  const auto documents = Documents("ab.cd.ef~h.");
  LoaderOptions options = Options(Packing::kSamples, 1, 1, 1);
  options.vocab_size = '~';
  const TrainLoader loader(WeightedSources{{nullptr, 1, documents}}, options, false, 0);
  HostBatch batch(1, kSeqLen);
  try {
    loader.MicroBatch(1, 0, 0, batch.Views());
    FAIL();
  } catch (const DataError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("a.txt, byte 8: token 126 is outside"), std::string::npos) << what;
    EXPECT_TRUE(what.ends_with("(sample 0)")) << what;
  }
}

TEST(WholeSamples, RefuseWhatMakesNoSense) {
  const auto documents = Documents("ab.cd.");
  const auto tokens = std::make_shared<SyntheticSource>(SyntheticOptions{.vocab_size = 8});
  LoaderOptions options = Options(Packing::kSamples, 1, 1, 1);
  const auto make = [&](const WeightedSource& source) {
    const TrainLoader loader(WeightedSources{source}, options, true, 0);
  };
  make({nullptr, 1, documents});
  EXPECT_THROW(make({tokens, 1}), std::invalid_argument);
  EXPECT_THROW(make({tokens, 1, documents}), std::invalid_argument);
  options.documents = true;
  EXPECT_THROW(make({nullptr, 1, documents}), std::invalid_argument);
  options = Options(Packing::kWindows, 1, 1, 1);
  make({tokens, 1});
  EXPECT_THROW(make({nullptr, 1, documents}), std::invalid_argument);
  options = Options(Packing::kNone, 1, 1, 1);
  options.seq_len = 2;
  EXPECT_THROW(make({nullptr, 1, documents}), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
