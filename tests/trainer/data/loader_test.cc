#include "trainer/data/loader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/trainer/data/host_batch.h"
#include "trainer/core/errors.h"
#include "trainer/data/synthetic/synthetic.h"
#include "trainer/data/text/text_source.h"

namespace fsdp {
namespace {

using testing::HostBatch;

constexpr int64_t kSeqLen = 6;
constexpr int32_t kVocab = 31;

// 100 windows.
std::shared_ptr<const TokenSource> Tokens() {
  return std::make_shared<SyntheticSource>(
      SyntheticOptions{.vocab_size = kVocab, .num_tokens = 100 * kSeqLen + 3, .seed = 4});
}

LoaderOptions Options(int64_t global, int64_t micro, int64_t ranks) {
  return {.seq_len = kSeqLen,
          .global_batch_size = global,
          .micro_batch_size = micro,
          .data_ranks = ranks,
          .vocab_size = kVocab};
}

// Row -> how often it was dealt, over all micro-batches and ranks, with every invariant of a row
// checked on the way.
struct Row {
  std::vector<int32_t> tokens, targets;
  auto operator<=>(const Row&) const = default;
};
template <typename Loader>
std::map<int64_t, Row> Gather(const Loader& loader, const LoaderOptions& options, int64_t step) {
  std::map<int64_t, Row> rows;
  for (int64_t m = 0; m < loader.MicroBatches(); ++m) {
    for (int64_t rank = 0; rank < options.data_ranks; ++rank) {
      HostBatch batch(options.micro_batch_size, kSeqLen);
      loader.MicroBatch(step, m, rank, batch.Views());
      for (int64_t row = 0; row < options.micro_batch_size; ++row) {
        const int64_t sample = loader.SampleOf(step, m, rank, row);
        EXPECT_EQ(batch.lengths[row], sample == kNoSample ? 0 : kSeqLen);
        Row got;
        for (int64_t i = row * kSeqLen; i < (row + 1) * kSeqLen; ++i) {
          EXPECT_EQ(batch.positions[i], i - row * kSeqLen);
          EXPECT_EQ(batch.weights[i], sample == kNoSample ? 0.0f : 1.0f);
          got.tokens.push_back(batch.tokens[i]);
          got.targets.push_back(batch.targets[i]);
        }
        if (sample == kNoSample) {
          EXPECT_EQ(got.tokens, std::vector<int32_t>(kSeqLen, 0));
          EXPECT_EQ(got.targets, std::vector<int32_t>(kSeqLen, 0));
        } else {
          EXPECT_TRUE(rows.emplace(sample, got).second) << "dealt twice: " << sample;
        }
      }
    }
  }
  return rows;
}

Row WindowAt(const TokenSource& source, int64_t offset) {
  Row row{std::vector<int32_t>(kSeqLen), std::vector<int32_t>(kSeqLen)};
  source.Read(offset, row.tokens);
  source.Read(offset + 1, row.targets);
  return row;
}

// (global, micro, ranks).
class DealTest : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(DealTest, RanksTogetherHoldExactlyTheGlobalBatch) {
  const auto [global, micro, ranks] = GetParam();
  const LoaderOptions options = Options(global, micro, ranks);
  const auto source = Tokens();
  const TrainLoader loader(source, options, /*shuffle=*/true, /*seed=*/8);
  EXPECT_EQ(loader.MicroBatches(), (global + micro * ranks - 1) / (micro * ranks));
  for (const int64_t step : {1, 2, 7, 1000}) {  // The last two cross epochs.
    const auto rows = Gather(loader, options, step);
    EXPECT_EQ(std::ssize(rows), global);
    EXPECT_EQ(loader.TargetsOfStep(step), global * kSeqLen);
    EXPECT_EQ(loader.InputTokensOfStep(step), global * kSeqLen);
    int64_t sample = (step - 1) * global;
    for (const auto& [got, row] : rows) {
      EXPECT_EQ(got, sample);
      EXPECT_EQ(row, WindowAt(*source,
                              dynamic_cast<const Samples&>(loader.rows()).PlaceOf(sample).offset));
      ++sample;
    }
  }
}

TEST_P(DealTest, EvaluationIsTheSameWindowsInOrderEverywhere) {
  const auto [global, micro, ranks] = GetParam();
  const LoaderOptions options = Options(global, micro, ranks);
  const auto source = Tokens();
  for (const int64_t batches : {int64_t{1}, int64_t{3}, INT64_MAX}) {
    const EvalLoader loader(source, options, batches);
    const int64_t want = std::min<int64_t>(100, batches > 100 ? 100 : batches * global);
    EXPECT_EQ(loader.Batches(), (want + global - 1) / global);
    EXPECT_EQ(loader.Targets(), want * kSeqLen);
    int64_t sample = 0, targets = 0;
    for (int64_t b = 0; b < loader.Batches(); ++b) {
      const auto rows = Gather(loader, options, b);
      EXPECT_EQ(loader.TargetsOfBatch(b), std::ssize(rows) * kSeqLen);
      targets += loader.TargetsOfBatch(b);
      for (const auto& [got, row] : rows) {
        EXPECT_EQ(got, sample);
        EXPECT_EQ(row, WindowAt(*source, sample * kSeqLen));
        ++sample;
      }
    }
    EXPECT_EQ(sample, want);
    EXPECT_EQ(targets, loader.Targets());
  }
}

INSTANTIATE_TEST_SUITE_P(AnyShape, DealTest,
                         ::testing::Combine(::testing::Values(1, 2, 7, 12, 33, 101),
                                            ::testing::Values(1, 3, 4, 40),
                                            ::testing::Values(1, 2, 3, 4, 5)));

TEST(TrainLoader, DealsMicroBatchByMicroBatchAndRankByRank) {
  const TrainLoader loader(Tokens(), Options(/*global=*/7, /*micro=*/2, /*ranks=*/2), true, 8);
  std::vector<int64_t> samples;
  for (const int64_t micro_index : {0, 1}) {
    for (const int64_t rank : {0, 1}) {
      for (const int64_t row : {0, 1})
        samples.push_back(loader.SampleOf(2, micro_index, rank, row));
    }
  }
  EXPECT_EQ(samples, (std::vector<int64_t>{7, 8, 9, 10, 11, 12, 13, kNoSample}));
}

TEST(TrainLoader, StepsReadOnWhereTheLastOneEnded) {
  const auto source = Tokens();
  const LoaderOptions options = Options(/*global=*/8, /*micro=*/3, /*ranks=*/2);
  const TrainLoader loader(source, options, /*shuffle=*/true, /*seed=*/8);
  std::multiset<Row> seen, want;
  for (int64_t step = 1; step <= 25; ++step) {  // 200 samples: two epochs.
    for (const auto& [sample, row] : Gather(loader, options, step)) seen.insert(row);
  }
  for (int64_t window = 0; window < 200; ++window) {
    want.insert(WindowAt(*source, window % 100 * kSeqLen));
  }
  EXPECT_TRUE(seen == want);
  // A loader made for the resumed run knows step 17 as well.
  EXPECT_EQ(Gather(TrainLoader(source, options, true, 8), options, 17),
            Gather(loader, options, 17));
  EXPECT_NE(Gather(TrainLoader(source, options, true, 9), options, 17),
            Gather(loader, options, 17));
}

// Two languages, so that a row tells its source.
WeightedSources TwoSources() {
  return {{std::make_shared<SyntheticSource>(
               SyntheticOptions{.vocab_size = kVocab, .num_tokens = 40 * kSeqLen + 1, .seed = 1}),
           3},
          {std::make_shared<SyntheticSource>(
               SyntheticOptions{.vocab_size = kVocab, .num_tokens = 10 * kSeqLen + 5, .seed = 2}),
           1}};
}

TEST(Mixtures, EachSourceHasEpochsOfItsOwn) {
  const LoaderOptions options = Options(/*global=*/8, /*micro=*/3, /*ranks=*/2);
  const WeightedSources sources = TwoSources();
  const TrainLoader loader(sources, options, /*shuffle=*/true, /*seed=*/8);
  std::vector<std::vector<int64_t>> offsets(2);
  for (int64_t step = 1; step <= 20; ++step) {  // 160 samples: 120 and 40, give or take one.
    for (const auto& [sample, row] : Gather(loader, options, step)) {
      const Samples::Place place = dynamic_cast<const Samples&>(loader.rows()).PlaceOf(sample);
      EXPECT_EQ(row, WindowAt(*sources[static_cast<size_t>(place.source)].source, place.offset));
      offsets[static_cast<size_t>(place.source)].push_back(place.offset);
    }
    EXPECT_NEAR(std::ssize(offsets[1]), 2 * step, 1);
  }
  // Samples come in order, so whole epochs do: three of the one, four of the other at least.
  for (size_t k = 0; k < 2; ++k) {
    const int64_t windows = k == 0 ? 40 : 10;
    std::vector<std::vector<int64_t>> orders;
    for (int64_t epoch = 0; (epoch + 1) * windows <= std::ssize(offsets[k]); ++epoch) {
      orders.emplace_back(offsets[k].begin() + epoch * windows,
                          offsets[k].begin() + (epoch + 1) * windows);
      std::set<int64_t> distinct(orders.back().begin(), orders.back().end());
      EXPECT_EQ(std::ssize(distinct), windows);
    }
    ASSERT_GE(orders.size(), k == 0 ? 2u : 3u);
    EXPECT_NE(orders[0], orders[1]);
  }
}

TEST(Mixtures, WorldAndResumeChangeNothing) {
  const WeightedSources sources = TwoSources();
  const LoaderOptions alone = Options(12, 12, 1);
  const TrainLoader loader(sources, alone, true, 8);
  for (const int64_t ranks : {2, 3, 5}) {
    const LoaderOptions options = Options(12, 2, ranks);
    const TrainLoader other(TwoSources(), options, true, 8);
    for (const int64_t step : {31, 2}) {
      EXPECT_EQ(Gather(other, options, step), Gather(loader, alone, step));
    }
  }
  EXPECT_NE(Gather(TrainLoader(sources, alone, true, 9), alone, 1), Gather(loader, alone, 1));
  // A mixture of one is the source itself, as it was before there were mixtures.
  const auto source = Tokens();
  EXPECT_EQ(Gather(TrainLoader(WeightedSources{{source, 0.25}}, alone, true, 8), alone, 5),
            Gather(TrainLoader(source, alone, true, 8), alone, 5));
}

// Which window of which source a sample is: a change of any of them is a change of every run, also
// where another build resumes it. Worked out with Python's integers from the definitions in
// mixture.h, sample_index.h, permutation.h and philox.h.
TEST(Mixtures, PlacesAreForEver) {
  const TrainLoader loader(TwoSources(), Options(8, 3, 2), /*shuffle=*/true, /*seed=*/8);
  const std::map<int64_t, std::pair<int64_t, int64_t>> window_of = {
      {0, {1, 8}},  {1, {0, 18}}, {2, {0, 34}},   {3, {0, 30}},   {4, {1, 7}},     {5, {0, 2}},
      {6, {0, 22}}, {7, {0, 23}}, {1000, {1, 7}}, {1001, {0, 6}}, {1002, {0, 33}}, {1003, {0, 24}}};
  for (const auto& [sample, window] : window_of) {
    const Samples::Place place = dynamic_cast<const Samples&>(loader.rows()).PlaceOf(sample);
    EXPECT_EQ(place.source, window.first) << sample;
    EXPECT_EQ(place.offset, window.second * kSeqLen) << sample;
  }
}

TEST(Mixtures, EvaluationHasTheSharesOfTraining) {
  const LoaderOptions options = Options(8, 4, 1);
  const WeightedSources sources = TwoSources();
  const EvalLoader all(sources, options, 1000);
  // 40 and 10 windows at 3 to 1: the second ends first, after about 40 samples.
  EXPECT_NEAR(static_cast<double>(all.Targets()) / kSeqLen, 42, 2);
  std::vector<int64_t> next(2);
  int64_t samples = 0;
  for (int64_t b = 0; b < all.Batches(); ++b) samples += std::ssize(Gather(all, options, b));
  EXPECT_EQ(samples * kSeqLen, all.Targets());
  EXPECT_EQ(EvalLoader(sources, options, 2).Targets(), 16 * kSeqLen);
}

// A source of given tokens.
std::shared_ptr<const TokenSource> Bytes(const std::string& name, const std::string& text,
                                         std::optional<int32_t> eot) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  std::shared_ptr<const TokenSource> source =
      std::make_shared<TextSource>(std::vector<std::string>{path});
  return eot ? WithEot(source, *eot) : source;
}

TEST(Documents, PositionsBeginAgainAndNobodyGuessesTheNextDocument) {
  LoaderOptions options = Options(1, 1, 1);
  options.vocab_size = 128;
  options.documents = true;
  //                                        |     |     |     |  windows of 6
  const auto source = Bytes("docs.txt", "..abc.defghijklmno.....pq", '.');
  const TrainLoader loader(source, options, /*shuffle=*/false, 0);
  const std::vector<std::vector<int32_t>> positions = {
      {0, 0, 0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}, {0, 0, 0, 0, 0, 0}};
  const std::vector<std::vector<float>> weights = {
      {0, 0, 1, 1, 1, 0}, {1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 1}};
  // Window 2 is "jklmno": its '.' is a target alone, and to end the document is a target that
  // counts.
  for (int64_t step = 1; step <= 4; ++step) {
    HostBatch batch(1, kSeqLen);
    loader.MicroBatch(step, 0, 0, batch.Views());
    EXPECT_EQ(batch.positions, positions[static_cast<size_t>(step - 1)]) << step;
    EXPECT_EQ(batch.weights, weights[static_cast<size_t>(step - 1)]) << step;
    const Row row{batch.tokens, batch.targets};
    EXPECT_EQ(row, WindowAt(*source, (step - 1) * kSeqLen));
    EXPECT_EQ(loader.TargetsOfStep(step),
              std::accumulate(batch.weights.begin(), batch.weights.end(), 0.0f));
  }
}

TEST(Documents, TargetsAreTheWeightsOfAllRanks) {
  WeightedSources sources = TwoSources();
  sources[0].source = WithEot(sources[0].source, 3);
  sources[1].source = WithEot(sources[1].source, 5);
  for (const int64_t ranks : {1, 2, 3}) {
    LoaderOptions options = Options(/*global=*/7, /*micro=*/2, ranks);
    options.documents = true;
    const TrainLoader loader(sources, options, true, 8);
    const EvalLoader eval(sources, options, 3);
    const auto sum = [&](const auto& from, int64_t step) {
      double weights = 0;
      for (int64_t m = 0; m < from.MicroBatches(); ++m) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          HostBatch batch(2, kSeqLen);
          from.MicroBatch(step, m, rank, batch.Views());
          for (const float weight : batch.weights) weights += weight;
        }
      }
      return weights;
    };
    int64_t fewer = 0;
    for (int64_t step = 1; step <= 30; ++step) {
      EXPECT_EQ(static_cast<double>(loader.TargetsOfStep(step)), sum(loader, step));
      EXPECT_EQ(loader.InputTokensOfStep(step), 7 * kSeqLen);
      fewer += loader.TargetsOfStep(step) < 7 * kSeqLen;
    }
    EXPECT_GT(fewer, 10);
    int64_t all = 0;
    for (int64_t b = 0; b < eval.Batches(); ++b) {
      EXPECT_EQ(static_cast<double>(eval.TargetsOfBatch(b)), sum(eval, b));
      all += eval.TargetsOfBatch(b);
    }
    EXPECT_EQ(eval.Targets(), all);
  }
}

TEST(Documents, NeedAnEndAndAStepNeedsTargets) {
  LoaderOptions options = Options(1, 1, 1);
  options.documents = true;
  options.vocab_size = 128;
  EXPECT_THROW(TrainLoader(Tokens(), options, true, 0), std::invalid_argument);
  const TrainLoader loader(Bytes("ends.txt", ".......", '.'), options, false, 0);
  EXPECT_THROW(loader.TargetsOfStep(1), DataError);
}

TEST(TrainLoader, TokenOutsideTheVocabularyNamesItsPlace) {
  const std::string path = ::testing::TempDir() + "/latin.txt";
  std::ofstream(path) << "abcdef\xe9 and on";
  const std::vector<std::string> paths = {path};
  LoaderOptions options = Options(1, 1, 1);
  options.vocab_size = 128;
  const TrainLoader loader(std::make_shared<TextSource>(paths, /*allow_invalid=*/true), options,
                           /*shuffle=*/false, 0);
  HostBatch batch(1, kSeqLen);
  try {
    loader.MicroBatch(1, 0, 0, batch.Views());  // The target of its last token.
    FAIL();
  } catch (const DataError& error) {
    const std::string what = error.what();
    EXPECT_EQ(what.find("data: " + path + ", byte 6: token 233 is outside"), 0u) << what;
    EXPECT_TRUE(what.ends_with("(sample 0)")) << what;
  }
}

// By step and sample, whatever ranks and micro-batches deal it.
TEST(TrainLoader, KeysNameTheSampleAlone) {
  const auto source = Tokens();
  const auto keys = [&](int64_t micro, int64_t ranks, uint64_t seed) {
    const LoaderOptions options = Options(8, micro, ranks);
    const TrainLoader loader(source, options, true, seed);
    std::map<int64_t, std::pair<int32_t, int32_t>> of;
    for (const int64_t step : {1, 2}) {
      for (int64_t m = 0; m < loader.MicroBatches(); ++m) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          HostBatch batch(micro, kSeqLen);
          loader.MicroBatch(step, m, rank, batch.Views());
          for (int64_t row = 0; row < micro; ++row) {
            const std::pair key(batch.keys[2 * row], batch.keys[2 * row + 1]);
            const int64_t sample = loader.SampleOf(step, m, rank, row);
            if (sample == kNoSample) {
              EXPECT_EQ(key, std::pair(0, 0));
            } else {
              of[sample] = key;
            }
          }
        }
      }
    }
    return of;
  };
  const auto one = keys(8, 1, 3);
  EXPECT_EQ(one.size(), 16u);
  EXPECT_EQ(keys(1, 1, 3), one);
  EXPECT_EQ(keys(2, 3, 3), one);
  EXPECT_NE(keys(8, 1, 4), one);
  std::set<std::pair<int32_t, int32_t>> different;
  for (const auto& [sample, key] : one) different.insert(key);
  EXPECT_EQ(different.size(), 16u);
  // Dropout depends on them: both words, for ever. Worked out with Python's integers.
  EXPECT_EQ(one.at(5), std::pair(static_cast<int32_t>(0x9aea9597), int32_t{0x181d5a2a}));
}

TEST(TrainLoader, RefusesWhatMakesNoSense) {
  const auto source = Tokens();
  const TrainLoader loader(source, Options(4, 2, 1), true, 0);
  HostBatch batch(2, kSeqLen);
  EXPECT_THROW(loader.MicroBatch(0, 0, 0, batch.Views()), std::invalid_argument);
  EXPECT_THROW(loader.MicroBatch(1, 2, 0, batch.Views()), std::invalid_argument);
  EXPECT_THROW(loader.MicroBatch(1, 0, 1, batch.Views()), std::invalid_argument);
  EXPECT_THROW(loader.SampleOf(1, 0, 0, 2), std::invalid_argument);
  EXPECT_THROW(loader.TargetsOfStep(0), std::invalid_argument);
  Batch views = batch.Views();
  views.inputs[2].dtype = DType::kInt32;
  EXPECT_THROW(loader.MicroBatch(1, 0, 0, views), std::invalid_argument);
  views = batch.Views();
  views.sample_keys.shape = Shape{2, 3};
  EXPECT_THROW(loader.MicroBatch(1, 0, 0, views), std::invalid_argument);
  HostBatch wide(2, kSeqLen + 1);
  EXPECT_THROW(loader.MicroBatch(1, 0, 0, wide.Views()), std::invalid_argument);
  EXPECT_THROW(loader.MicroBatch(1, 0, 0, Batch{}), std::invalid_argument);
  EXPECT_THROW(TrainLoader(source, Options(0, 2, 1), true, 0), std::invalid_argument);
  EXPECT_THROW(EvalLoader(source, Options(4, 2, 1), 0), std::invalid_argument);
  EXPECT_THROW(EvalLoader(source, Options(4, 2, 1), 2).TargetsOfBatch(2), std::invalid_argument);
  LoaderOptions longer = Options(4, 2, 1);
  longer.seq_len = 1000;
  EXPECT_THROW(TrainLoader(source, longer, true, 0), DataError);
  EXPECT_THROW(EvalLoader(source, longer, 1), DataError);
}

}  // namespace
}  // namespace fsdp
