#include "trainer/recipe/resume.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "models/family.h"
#include "models/gpt2/config.h"
#include "trainer/core/errors.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

Recipe With(const Strings& overrides) {
  return ParseRecipe({{"r.yaml", "model: {family: gpt2}\ndata: {train: {paths: [x]}}\n"}},
                     overrides);
}

std::string Differences(const Strings& now, const Strings& before = {}) {
  std::string text;
  for (const RecipeDifference& difference : ResumeDifferences(With(before), With(now))) {
    text += difference.key + " " + difference.before + " -> " + difference.now + "; ";
  }
  return text;
}

TEST(ResumeDifferences, FreeKeysMayDiffer) {
  EXPECT_EQ(Differences({}), "");
  EXPECT_EQ(
      Differences({"run={name: x, dir: y, seed: 2, device: cpu, threads: 3, timeout_s: 5}",
                   "log={every: 2, trace_steps: [1]}", "checkpoint={every: 3, resume: 7}",
                   "eval={every: 4, sample: {prompt: p}}", "data.valid={paths: [v]}",
                   "data.cache=c", "data.threads=3", "data.allow_changed=true",
                   "data.allow_invalid_text=true", "train.steps=200", "train.micro_batch_size=3",
                   "fsdp={sharding_strategy: no_shard, reduce_buffers: 5, auto_wrap: "
                   "{policy: none}}"}),
      "");
  EXPECT_EQ(Differences({"data.valid=null"}), "");
  EXPECT_EQ(Differences({"data.valid=[{paths: [v], name: a}, {paths: [w], name: b}]"}), "");
}

TEST(ResumeDifferences, OthersAreNamedWithBothValues) {
  EXPECT_EQ(
      Differences({"optimizer.lr=1e-3", "data.train.paths=[x, z]", "model.hidden_size=384",
                   "train.global_batch_size=4", "schedule.name=constant", "data.seq_len=128"}),
      "model.hidden_size 768 -> 384; model.intermediate_size 3072 -> 1536; "
      "data.train.paths [x] -> [x, z]; data.seq_len 256 -> 128; "
      "train.global_batch_size 32 -> 4; optimizer.lr 3.0e-4 -> 0.001; "
      "schedule.name cosine -> constant; ");
  const auto mixed = [](const std::string& second) {
    return With({"data.train=[{paths: [x]}, " + second + "]"});
  };
  const auto differences =
      ResumeDifferences(mixed("{paths: [y]}"), mixed("{paths: [y], weight: 2}"));
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].key, "data.train[1].weight");
  EXPECT_EQ(differences[0].now, "2.0");
  // A key that one of the two does not have at all.
  const Recipe two = mixed("{paths: [y]}"), one = With({"data.train=[{paths: [x]}]"});
  for (const auto& found : {ResumeDifferences(two, one), ResumeDifferences(one, two)}) {
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].key, "data.train");
  }
  const auto taken_away = ResumeDifferences(With({"train.ema={decay: 0.5}"}), With({}));
  ASSERT_EQ(taken_away.size(), 1u);
  EXPECT_EQ(taken_away[0].before, "{decay: 0.5}");
  EXPECT_EQ(taken_away[0].now, "null");
  EXPECT_EQ(Differences({"data.documents=true", "data.train.eot=0"}),
            "data.train.eot null -> 0; data.documents false -> true; ");
  EXPECT_EQ(Differences({"data={packing: samples, too_long: cut}", "data.train.eot=0"}),
            "data.train.eot null -> 0; data.packing windows -> samples; data.too_long error -> "
            "cut; ");
  // A value that replaces one of another form is named once, whole.
  EXPECT_EQ(Differences({"train.ema={decay: 0.5}"}), "train.ema null -> {decay: 0.5}; ");
  EXPECT_EQ(Differences({"optimizer.groups=[{match: x, frozen: true}]"}),
            "optimizer.groups [] -> [{match: x, weight_decay: null, lr_scale: 1.0, frozen: true, "
            "rule: null, state_dtype: null}]; ");
  const auto replaced = ResumeDifferences(With({}), mixed("{paths: [y]}"));
  ASSERT_EQ(replaced.size(), 1u);
  EXPECT_EQ(replaced[0].key, "data.train");
  EXPECT_EQ(replaced[0].now[0], '[');
  try {
    CheckResume(With({}), With({"model.hidden_size=1536", "optimizer.lr=1", "data.seq_len=2"}),
                "c/step_4");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "--set model.hidden_size=1536: model.hidden_size: the run to resume has 768, the "
        "recipe has 1536: may not differ on a resume. Put it back, or begin another run "
        "(run.name)\n"
        "model.intermediate_size: the run to resume has 3072, the recipe has 6144: may not "
        "differ on a resume. Put it back, or begin another run (run.name)\n"
        "--set data.seq_len=2: data.seq_len: the run to resume has 256, the recipe has 2: "
        "may not differ on a resume. Put it back, or begin another run (run.name) from "
        "these weights (model.init_from: c/step_4)\n"
        "--set optimizer.lr=1: optimizer.lr: the run to resume has 3.0e-4, the recipe has "
        "1.0: may not differ on a resume. Put it back, or go on with it by "
        "checkpoint.allow_changed: [optimizer.lr]");
  }
  EXPECT_TRUE(CheckResume(With({}), With({"train.steps=5"}), "c").empty());
}

// Each name lets through its own keys, and no other's.
TEST(CheckResume, LetsThroughWhatItsNameAllows) {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"model.embedding_dropout", "model.embedding_dropout=0.5"},
      {"model.residual_dropout", "model.residual_dropout=0.5"},
      {"model.attention_dropout", "model.attention_dropout=0.5"},
      {"model.dropout_rate", "model.dropout_rate=0.5"},
      {"model.hidden_dropout_prob", "model.hidden_dropout_prob=0.5"},
      {"train.grad_clip", "train.grad_clip=7"},
      {"train.ema.decay", "train.ema={decay: 0.5}"},
      {"optimizer.lr", "optimizer.lr=7"},
      {"optimizer.betas", "optimizer.betas=[0.5, 0.5]"},
      {"optimizer.eps", "optimizer.eps=7"},
      {"optimizer.weight_decay", "optimizer.weight_decay=7"},
      {"optimizer.table_lr", "optimizer.table_lr=7"},
      {"schedule", "schedule={name: wsd, warmup_steps: 3, decay_steps: 4, decay: linear}"}};
  EXPECT_EQ(changes.size() + 1, recipe::AllowedChanges().size());  // And records.
  const std::string average = "train.ema={decay: 0.25}";
  for (const auto& [name, change] : changes) {
    const bool t5 = name == "model.dropout_rate", vit = name == "model.hidden_dropout_prob";
    const std::string family = t5    ? "model.family=t5"
                               : vit ? "model.family=vit"
                                     : "model.family=gpt2";
    const std::string source = t5 || vit ? "data.train=[{source: synthetic}]" : "data.shuffle=true";
    const Recipe before = With({family, source, average});
    for (const std::string& allowed : recipe::AllowedChanges()) {
      const Recipe now =
          With({family, source, average, change, "checkpoint.allow_changed=[" + allowed + "]"});
      if (allowed == name) {
        EXPECT_FALSE(CheckResume(before, now, "c").empty()) << name;
      } else {
        EXPECT_THROW(CheckResume(before, now, "c"), ConfigError) << name << allowed;
      }
    }
  }
  // State that the checkpoint has not got.
  EXPECT_THROW(
      CheckResume(With({}), With({average, "checkpoint.allow_changed=[train.ema.decay]"}), "c"),
      ConfigError);
}

// Builds recorded nothing of the shape that they had read: it is held against the recipe's anyway.
TEST(ResumeDifferences, AShapeThatWasNotRecordedIsNoDifference) {
  const auto from = [](const std::vector<std::string>& overrides) {
    return ParseRecipe({{"r.yaml", "model: {init_from: m}\ndata: {train: {paths: [x]}}\n"}},
                       overrides);
  };
  const Recipe open = from({}), filled = WithShape(open, Gpt2Config());
  EXPECT_TRUE(ResumeDifferences(WithShape(open, Gpt2Config()), filled).empty());
  Recipe old = open;  // It recorded the dropouts.
  for (const char* dropout : {"embedding_dropout", "residual_dropout", "attention_dropout"}) {
    old.model.fields[dropout] = 0.0;
  }
  EXPECT_TRUE(ResumeDifferences(old, filled).empty());
  const auto other = ResumeDifferences(filled, WithShape(open, Gpt2Config{.num_hidden_layers = 3}));
  ASSERT_EQ(other.size(), 1u);
  EXPECT_EQ(other[0].key, "model.num_hidden_layers");
}

// A change of one key is free where, and only where, the first column of the table says so.
TEST(ResumeDifferences, AreAsDocsTrainingSays) {
  std::vector<std::string> free;
  std::ifstream page("docs/training.md");
  bool table = false;
  for (std::string line; std::getline(page, line);) {
    table = line.starts_with("| may differ") || (table && line.starts_with("|"));
    if (!table) continue;
    const std::string cell = line.substr(2, line.find(" |", 2) - 2);
    for (size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at + 1)) {
      const size_t end = cell.find('`', at + 1);
      free.push_back(cell.substr(at + 1, end - at - 1));
      at = end;
    }
  }
  EXPECT_GE(free.size(), 7u);
  std::set<std::string> used;
  for (const std::string change : {"run.seed=2",
                                   "run.threads=3",
                                   "run.deterministic=true",
                                   "model.num_hidden_layers=2",
                                   "model.residual_dropout=0.5",
                                   "model.initializer_range=0.5",
                                   "model.table_capacity=3",
                                   "model.table_width=8",
                                   "data.train.paths=[y]",
                                   "data.train.eot=1",
                                   "data.seq_len=8",
                                   "data.shuffle=false",
                                   "data.cache=/c",
                                   "data.allow_changed=true",
                                   "train.activation_checkpointing=full",
                                   "train.attention=math",
                                   "data.valid.fraction=0.5",
                                   "data.valid=null",
                                   "train.steps=7",
                                   "train.max_skipped_steps=7",
                                   "optimizer.state_dtype=bf16",
                                   "train.micro_batch_size=7",
                                   "train.global_batch_size=7",
                                   "train.grad_clip=7",
                                   "train.ema={decay: 0.5}",
                                   "eval.every=7",
                                   "eval.steps=7",
                                   "optimizer.name=sgd",
                                   "optimizer.lr=7",
                                   "optimizer.groups=[{match: x}]",
                                   "schedule.name=wsd",
                                   "schedule.warmup_steps=7",
                                   "fsdp.sharding_strategy=no_shard",
                                   "fsdp.auto_wrap.policy=none",
                                   "fsdp.gradient_accumulation=unsharded",
                                   "data.threads=7",
                                   "checkpoint.every=7",
                                   "checkpoint.async=false",
                                   "log.every=7",
                                   "log.tensorboard=false"}) {
    const std::string key = change.substr(0, change.find('='));
    bool listed = false;
    for (const std::string& name : free) {
      const bool all = name.ends_with(".*");
      const std::string stem = all ? name.substr(0, name.size() - 1) : name + ".";
      if (!(key + ".").starts_with(stem)) continue;
      listed = true;
      used.insert(name);
    }
    Strings base;
    if (key.starts_with("model.table_"))
      base = {"model.family=dhen", "data.train=[{source: synthetic}]"};
    Strings now = base;
    now.push_back(change);
    EXPECT_EQ(Differences(now, base).empty(), listed) << change;
  }
  EXPECT_EQ(used.size(), free.size());
}

TEST(SharedSettings, HoldEveryKeyButTheHostsOwn) {
  const auto shared = SharedSettings(With({}));
  EXPECT_EQ(SharedSettings(With({"train.steps=100"})), shared);  // The default, written out.
  EXPECT_EQ(SharedSettings(With(
                {"run.threads=2", "run.dir=/mnt/here", "data.cache=/scratch", "data.threads=4"})),
            shared);
  for (const char* change : {"eval.every=1", "run.seed=1", "fsdp.communicators=1",
                             "log.trace_steps=[1]", "data.valid=null", "model.vocab_size=300"}) {
    EXPECT_NE(SharedSettings(With({change})), shared) << change;
  }
}

}  // namespace
}  // namespace fsdp
