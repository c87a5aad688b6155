#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "trainer/data/loader.h"
#include "trainer/data/synthetic/synthetic.h"
#include "trainer/data/tokens/token_batch.h"

namespace fsdp {
namespace {

using Role = BatchInput::Role;

BatchSpec Spec() {
  return {.inputs = {{"image", DType::kFloat32, Shape{3, 4}},
                     {"label", DType::kInt32, Shape{}, Role::kTarget, 10},
                     {"weight", DType::kFloat32, Shape{}, Role::kWeight}},
          .targets = 1};
}

struct Memory {
  explicit Memory(int64_t rows)
      : bytes(static_cast<size_t>(BatchBytes(Spec(), rows)), std::byte{0x5a}),
        batch(CarveBatch(Spec(), rows, bytes.data())) {}

  std::vector<float> Image(int64_t row) const {
    const float* const begin = batch.inputs[0].As<float>() + 12 * row;
    return {begin, begin + 12};
  }
  int32_t label(int64_t row) const { return batch.inputs[1].As<int32_t>()[row]; }
  float weight(int64_t row) const { return batch.inputs[2].As<float>()[row]; }

  std::vector<std::byte> bytes;
  Batch batch;
};

std::shared_ptr<const SyntheticRows> Rows(std::vector<SyntheticRows::Source> sources) {
  return std::make_shared<SyntheticRows>(Spec(), std::move(sources), /*seed=*/7);
}

TEST(SyntheticRows, DrawsWhatIsDeclared) {
  const auto rows = Rows({{.seed = 1}});
  Memory memory(1);
  double sum = 0, squares = 0;
  std::vector<int> labels(10);
  constexpr int kSamples = 2000;
  for (int i = 0; i < kSamples; ++i) {
    rows->Fill(i, 0, memory.batch);
    for (const float value : memory.Image(0)) {
      sum += value;
      squares += value * value;
    }
    ASSERT_GE(memory.label(0), 0);
    ASSERT_LT(memory.label(0), 10);
    ++labels[static_cast<size_t>(memory.label(0))];
    EXPECT_EQ(memory.weight(0), 1);
  }
  constexpr double kDraws = 12.0 * kSamples;
  EXPECT_NEAR(sum / kDraws, 0, 5 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1, 5 * std::sqrt(2 / kDraws));
  for (const int n : labels) EXPECT_NEAR(n, kSamples / 10, 5 * std::sqrt(kSamples / 10));
  EXPECT_EQ(rows->Targets(3, 10), 7);
}

TEST(SyntheticRows, ARowIsItsSamplesAlone) {
  const auto rows = Rows({{.seed = 1}});
  Memory one(1), many(3);
  for (int64_t row = 0; row < 3; ++row) rows->Fill(40 + row, row, many.batch);
  rows->Fill(41, 0, one.batch);
  EXPECT_EQ(one.Image(0), many.Image(1));
  EXPECT_EQ(one.label(0), many.label(1));
  rows->Fill(SyntheticRows::kEpoch + 41, 0, one.batch);  // The next epoch's.
  EXPECT_EQ(one.Image(0), many.Image(1));
  EXPECT_NE(many.Image(0), many.Image(1));
  rows->Fill(kNoSample, 0, one.batch);
  EXPECT_EQ(one.Image(0), std::vector<float>(12, 0));
  EXPECT_EQ(one.label(0), 0);
  EXPECT_EQ(one.weight(0), 0);
}

TEST(SyntheticRows, PartsOfAnEpochHaveNoSampleInCommon) {
  const auto train = Rows({{.seed = 1, .first = 0, .rows = 6}});
  const auto rest = Rows({{.seed = 1, .first = 6, .rows = 2}});
  Memory a(1), b(1);
  for (int64_t i = 0; i < 12; ++i) {
    for (int64_t j = 0; j < 4; ++j) {
      train->Fill(i, 0, a.batch);
      rest->Fill(j, 0, b.batch);
      EXPECT_NE(a.Image(0), b.Image(0)) << i << " and " << j;
    }
  }
}

// One deal for whatever rows hold: the same samples on one rank and on three.
TEST(SyntheticRows, AreDealtAsTokensAre) {
  const auto rows = Rows({{.seed = 1, .weight = 2}, {.seed = 2}});
  const TrainLoader alone(rows, {.global_batch_size = 8, .micro_batch_size = 8}, 3);
  Memory all(8);
  alone.MicroBatch(5, 0, 0, all.batch);
  const TrainLoader shared(rows, {8, 2, 3}, 3);
  ASSERT_EQ(shared.MicroBatches(), 2);
  int64_t seen = 0;
  for (int64_t m = 0; m < 2; ++m) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      Memory part(2);
      shared.MicroBatch(5, m, rank, part.batch);
      for (int64_t row = 0; row < 2; ++row) {
        const int64_t place = (m * 3 + rank) * 2 + row;
        if (place >= 8) {
          EXPECT_EQ(part.weight(row), 0);
          continue;
        }
        ++seen;
        EXPECT_EQ(part.Image(row), all.Image(place));
        EXPECT_EQ(part.label(row), all.label(place));
        const int32_t* const keys = part.batch.sample_keys.As<int32_t>();
        EXPECT_EQ(keys[2 * row], all.batch.sample_keys.As<int32_t>()[2 * place]);
      }
    }
  }
  EXPECT_EQ(seen, 8);
  EXPECT_EQ(shared.TargetsOfStep(5), 8);
  const EvalLoader eval(rows, {8, 2, 3}, 2);
  EXPECT_EQ(eval.Targets(), 16);
}

TEST(SyntheticRows, RefusesWhatItCannotDraw) {
  EXPECT_THROW(SyntheticRows(TokenInputs(8, 100), {{}}, 0), std::invalid_argument);  // `order`.
  EXPECT_THROW(SyntheticRows({.inputs = {{"label", DType::kInt32}}}, {{}}, 0),
               std::invalid_argument);
  EXPECT_THROW(Rows({}), std::invalid_argument);
  Memory memory(2);
  EXPECT_THROW(Rows({{}})->CheckViews(memory.batch, 3), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
