#include "models/dhen/dhen.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "models/shape.h"
#include "tests/models/dhen/set_shape.h"
#include "tests/testing/model_promises.h"
#include "trainer/data/clicks/click_store.h"
#include "trainer/data/synthetic/synthetic.h"

namespace fsdp::testing {
namespace {

DhenConfig TinyDhen() {
  return {.dense_columns = 5,
          .table_rows = {7, 11, 3, 20},
          .table_width = 6,
          .dense_vectors = 2,
          .num_vectors = 5,
          .num_hidden_layers = 3,
          .num_attention_heads = 2,
          .cross_rank = 4,
          .intermediate_size = 9};
}

// Labels of 0 and 1, and random numbers and vectors.
TinyRun RunOf(const DhenConfig& config) {
  TinyRun run;
  run.model = [config] { return DhenOfVectors(config); };
  run.rows = std::make_shared<SyntheticRows>(
      run.model()->Inputs(0), std::vector<SyntheticRows::Source>{{.seed = 5}}, /*seed=*/0);
  run.options.executor.max_norm = 0;
  return run;
}

TEST(Dhen, StrategyAndRecomputationChangeNoBit) {
  ExpectStrategyAndRecomputationChangeNoBit(RunOf(TinyDhen()));
}
TEST(Dhen, TheRootChangesNoBit) { ExpectTheRootChangesNoBit(RunOf(TinyDhen())); }
TEST(Dhen, OffloadChangesNoBit) { ExpectOffloadChangesNoBit(RunOf(TinyDhen())); }
TEST(Dhen, RanksAndMicroBatchesAgree) { ExpectRanksAndMicroBatchesAgree(RunOf(TinyDhen())); }
TEST(Dhen, GradientIsThatOfDifferences) { ExpectGradientOfDifferences(RunOf(TinyDhen())); }

TEST(Dhen, SixteenBitsAreNearFp32) {
  TinyRun run = RunOf(TinyDhen());
  run.steps = 2;
  const TinyResult want = Train(run);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    run.options.executor.mixed_precision.param_dtype = dtype;
    const TinyResult got = Train(run);
    for (size_t s = 0; s < want.losses.size(); ++s) {
      EXPECT_NEAR(got.losses[s] / want.losses[s], 1, 0.02) << Name(dtype);
      EXPECT_NEAR(got.grad_norms[s] / want.grad_norms[s], 1, 0.05) << Name(dtype);
    }
  }
}

TEST(Dhen, DeclaresItsInputsAndTables) {
  DhenConfig config = TinyDhen();
  config.table_bags = {1, 3, 1, 2};
  config.table_dtype = TableDType::kBFloat16;
  config.table_capacity = 1.5;
  const Dhen dhen(config);
  const BatchSpec spec = dhen.Inputs(0);
  EXPECT_TRUE(IsOfClicks(spec));
  EXPECT_EQ(spec.inputs[kDense].sample, Shape{5});
  EXPECT_EQ(spec.inputs[kIds].sample, (Shape{7, 2}));
  CheckTables(dhen.tables(), spec);
  ASSERT_EQ(dhen.tables().size(), 4u);
  EXPECT_EQ(dhen.tables()[1].name, "tables.1.weight");
  EXPECT_EQ(dhen.tables()[1].rows, 11);
  EXPECT_EQ(dhen.tables()[1].bag, 3);
  EXPECT_EQ(dhen.tables()[1].width, 6);
  EXPECT_EQ(dhen.tables()[1].dtype, DType::kBFloat16);
  EXPECT_EQ(dhen.tables()[1].capacity, 1.5);
}

std::vector<std::string> NamesOf(const Model& model) {
  std::vector<std::string> names;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) names.push_back(parameter->name());
  }
  return names;
}

TEST(DhenFamily, SaysWhatIsWrongWithAShape) {
  const ModelFamily& family = FamilyOfConfig(DhenConfig());
  const auto mistakes = [&](const DhenConfig& config) {
    std::vector<std::string> lines;
    for (const ShapeMistake& mistake : family.Validate(ModelShape(config))) {
      lines.push_back(mistake.field + ": " + mistake.message);
    }
    return lines;
  };
  using Lines = std::vector<std::string>;
  DhenConfig config = TinyDhen();
  EXPECT_EQ(mistakes(config), Lines{});
  config.table_bags = {1, 2};
  EXPECT_EQ(mistakes(config),
            Lines{"table_bags: has 2 numbers, want one for each of 4 tables, or none"});
  config = TinyDhen();
  config.num_attention_heads = 4;
  EXPECT_EQ(mistakes(config), Lines{"num_attention_heads: 4 heads do not divide table_width 6"});
  config = TinyDhen();
  config.table_rows.clear();
  EXPECT_EQ(mistakes(config), Lines{"table_rows: a DHEN reads at least one column of ids"});
  config.table_rows = {5, 0};
  EXPECT_EQ(mistakes(config).size(), 1u);
}

// The smallest alike has the same names of parameters, with and without a shortcut's weight.
TEST(DhenFamily, ShrinksToTheSameNames) {
  const ModelFamily& family = FamilyOfConfig(DhenConfig());
  DhenConfig alike = TinyDhen();
  alike.num_vectors = 6;
  for (const DhenConfig& config : {TinyDhen(), alike}) {
    const ModelShape shape(config);
    EXPECT_EQ(NamesOf(*MakeModel(family.SmallestAlike(shape))), NamesOf(*MakeModel(shape)));
  }
}

// docs/models.md says how many.
TEST(DhenFamily, PresetIsThePapersSize) {
  const ModelShape shape = *FindModelPreset("dhen-550m");
  EXPECT_NEAR(static_cast<double>(NumParameters(shape)), 550e6, 0.01 * 550e6);
  double elements = 0;
  for (const EmbeddingTable& table : MakeModel(shape)->tables()) {
    elements += static_cast<double>(table.rows) * static_cast<double>(table.width);
  }
  EXPECT_EQ(elements, 768e9);
}

}  // namespace
}  // namespace fsdp::testing
