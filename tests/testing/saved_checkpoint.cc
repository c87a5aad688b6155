#include "tests/testing/saved_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/trainer/comm/ranks.h"
#include "trainer/loop/train.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp::testing {

std::string SavedCheckpoint(const std::string& name, const std::vector<std::string>& more) {
  const std::string run = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(run);
  std::vector<std::string> overrides = {"run.dir=" + run};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const Recipe recipe = ParseRecipe(
      {{"tiny",
        "run: {threads: 1}\n"
        "model: {family: llama, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4,\n"
        "        vocab_size: 500, max_position_embeddings: 16}\n"
        "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
        "train: {steps: 1, micro_batch_size: 1, global_batch_size: 2}\n"
        "checkpoint: {every: 1}\n"}},
      overrides);
  for (const Outcome& outcome : RunProcessRanks(2, [&](Rank& rank) -> std::string {
         Job job;
         job.rank = rank.rank;
         job.world = job.local_world = rank.size;
         job.store = rank.store;
         job.connect = [&](const std::string& name, const RankGroup& group) {
           return rank.join_group(name, group, {.timeout_s = 60});
         };
         TrainRank(recipe, job);
         return "";
       })) {
    EXPECT_EQ(outcome.error, "");
  }
  return run + "/checkpoints/step_1";
}

}  // namespace fsdp::testing
