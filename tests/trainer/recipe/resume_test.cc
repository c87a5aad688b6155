#include "trainer/recipe/resume.h"

#include <gtest/gtest.h>

#include "trainer/core/errors.h"
#include "trainer/recipe/load.h"

namespace fsdp {
namespace {

Recipe With(const std::vector<std::string>& overrides) {
  return ParseRecipe({{"r.yaml", "model: {family: gpt2}\ndata: {train: {paths: [x]}}\n"}},
                     overrides);
}

std::string Differences(const std::vector<std::string>& now) {
  std::string text;
  for (const RecipeDifference& difference : ResumeDifferences(With({}), With(now))) {
    text += difference.key + " " + difference.before + " -> " + difference.now + "; ";
  }
  return text;
}

TEST(ResumeDifferences, FreeKeysMayDiffer) {
  EXPECT_EQ(Differences({}), "");
  EXPECT_EQ(Differences({"run={name: x, dir: y, seed: 2, device: cpu, threads: 3, timeout_s: 5}",
                         "log={every: 2, trace_steps: [1]}", "checkpoint={every: 3, resume: 7}",
                         "eval={every: 4, sample: {prompt: p}}", "data.valid={paths: [v]}",
                         "train.steps=200",
                         "fsdp={sharding_strategy: no_shard, reduce_buffers: 5, auto_wrap: "
                         "{policy: none}}"}),
            "");
  EXPECT_EQ(Differences({"data.valid=null"}), "");
  EXPECT_EQ(Differences({"data.valid=[{paths: [v], name: a}, {paths: [w], name: b}]"}), "");
}

TEST(ResumeDifferences, OthersAreNamedWithBothValues) {
  EXPECT_EQ(Differences({"optimizer.lr=1e-3", "data.train.paths=[x, z]", "model.hidden_size=384",
                         "train.micro_batch_size=4", "schedule.name=constant", "data.seq_len=128"}),
            "model.hidden_size 768 -> 384; model.intermediate_size 3072 -> 1536; "
            "data.train.paths [x] -> [x, z]; data.seq_len 256 -> 128; "
            "train.micro_batch_size 8 -> 4; optimizer.lr 3.0e-4 -> 0.001; "
            "schedule.name cosine -> constant; ");
  const auto mixed = [](const std::string& second) {
    return With({"data.train=[{paths: [x]}, " + second + "]"});
  };
  const auto differences =
      ResumeDifferences(mixed("{paths: [y]}"), mixed("{paths: [y], weight: 2}"));
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].key, "data.train[1].weight");
  EXPECT_EQ(differences[0].now, "2.0");
  EXPECT_EQ(Differences({"data.documents=true", "data.train.eot=0"}),
            "data.train.eot null -> 0; data.documents false -> true; ");
  try {
    CheckResume(With({}), With({"optimizer.lr=1", "train.grad_clip=2"}));
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "--set train.grad_clip=2: train.grad_clip: the run to resume has 1.0, the recipe "
                 "has 2.0: may not differ on a resume\n"
                 "--set optimizer.lr=1: optimizer.lr: the run to resume has 3.0e-4, the recipe has "
                 "1.0: may not differ on a resume");
  }
  EXPECT_NO_THROW(CheckResume(With({}), With({"train.steps=5"})));
}

TEST(SharedSettings, HoldEveryKeyButTheHostsOwn) {
  const auto shared = SharedSettings(With({}));
  EXPECT_EQ(SharedSettings(With({"train.steps=100"})), shared);  // The default, written out.
  EXPECT_EQ(SharedSettings(With({"run.threads=2", "run.dir=/mnt/here", "data.cache=/scratch"})),
            shared);
  for (const char* change : {"eval.every=1", "run.seed=1", "fsdp.communicators=1",
                             "log.trace_steps=[1]", "data.valid=null", "model.vocab_size=300"}) {
    EXPECT_NE(SharedSettings(With({change})), shared) << change;
  }
}

}  // namespace
}  // namespace fsdp
