// The multiprocessors that collectives may take: by the recipe, by the machine, and the same on all
// ranks.
#include "trainer/loop/multiprocessors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/loop/choice.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Recipe With(const Words& overrides) {
  return ParseRecipe({{"tiny.yaml",
                       "model: {family: gpt2, hidden_size: 32, num_hidden_layers: 2,\n"
                       "        num_attention_heads: 2, vocab_size: 64,\n"
                       "        max_position_embeddings: 16}\n"
                       "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"}},
                     overrides);
}

TEST(Multiprocessors, TheMachineDecidesWhereNobodyHas) {
  const Recipe recipe = With({});
  const auto blocks = [&](const GpuKind& gpus) { return ShareOut(recipe, gpus).collectives; };
  EXPECT_EQ(blocks({9, 8, 132}), 8);
  EXPECT_EQ(blocks({10, 4, 148}), 8);
  EXPECT_EQ(blocks({9, 2, 132}), 16);  // No switch between two.
  EXPECT_EQ(blocks({8, 8, 108}), 16);
  EXPECT_EQ(blocks({9, 4, 28}), 7);  // At most a quarter.
  EXPECT_EQ(blocks({9, 1, 2}), 1);
  EXPECT_EQ(blocks({}), 16);
}

TEST(Multiprocessors, ProductsGetTheOthers) {
  const Multiprocessors by_recipe =
      ShareOut(With({"fsdp.collective_blocks=20"}), {8, 8, /*multiprocessors=*/108});
  EXPECT_EQ(by_recipe.collectives, 20);
  EXPECT_EQ(by_recipe.products(), 88);
  EXPECT_EQ(by_recipe.Text(),
            "collectives take at most 20 of 108 multiprocessors, products run on the other 88");
  const Multiprocessors unknown = ShareOut(With({}), {});
  EXPECT_EQ(unknown.products(), 0);
  EXPECT_EQ(unknown.Text(), "collectives take at most 16 multiprocessors");
  const Multiprocessors left = ShareOut(With({"fsdp.collective_blocks=0"}), {9, 8, 132});
  EXPECT_EQ(left.products(), 0);
  EXPECT_EQ(left.Text(), "");
}

TEST(Multiprocessors, SomeAreLeft) {
  try {
    (void)ShareOut(With({"fsdp.collective_blocks=14"}), {9, 1, /*multiprocessors=*/14});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("fsdp.collective_blocks: 14, and a GPU here has 14 "
                                        "multiprocessors: products would be left without one"));
  }
}

// Each rank has the other's GPUs to reckon with: NCCL wants one number.
TEST(Multiprocessors, RanksTakeOneNumber) {
  ResolvedRun run;
  run.recipe = std::make_unique<Recipe>(With({}));
  run.place.device.emplace().multiprocessors = 132;
  Choosing choosing{run};
  EXPECT_FALSE(BlocksChoice().Concerns(choosing));  // Nothing goes over NCCL.
  const auto record = [&](const Words& told) {
    choosing.told = told;
    return BlocksChoice().Record(BlocksChoice().Agree(choosing), choosing);
  };
  EXPECT_EQ(record({"9 8 132", "9 8 132"}).value, "8");
  EXPECT_EQ(run.multiprocessors.products(), 124);
  EXPECT_EQ(record({"9 8 132", "8 8 108"}).value, "16");
  EXPECT_EQ(run.multiprocessors.products(), 116);
  const Chosen small = record({"9 8 132", "9 8 12"});
  EXPECT_EQ(small.value, "3");
  EXPECT_EQ(small.labels, (Labels{{"blocks", "3"}}));
}

}  // namespace
}  // namespace fsdp
