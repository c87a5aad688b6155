// `fsdp-train eval`: the losses that a run recorded, from its checkpoint alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

const char kWeights[] = "tests/fixtures/gpt2/one_head";

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Outcome Eval(const Strings& flags, int world = 1) {
  Strings arguments;
  if (world > 1) arguments = {"launch", "--nproc-per-node", std::to_string(world), "--"};
  arguments.insert(arguments.end(), {"eval"});
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return Call(arguments);
}

Json SetsOf(const Outcome& outcome) {
  const size_t at = outcome.out.find('{');  // Behind a launcher's prefix.
  if (outcome.code != 0 || at == std::string::npos) return Json();
  return Json::parse(outcome.out.substr(at))["sets"];
}

// Two sets of text, evaluated at the end.
Strings OnText(const Job& job) {
  std::string words;
  for (int i = 0; i < 900; ++i) words += "word " + std::to_string(i * i) + ". ";
  const std::string one = job.dir().Write("one.txt", words),
                    two = job.dir().Write("two.txt", words.substr(2000, 1900));
  return {"model.vocab_size=256", "data.train={source: text, paths: [" + one + "]}",
          "data.valid=[{name: one, paths: [" + one + "]}, {name: two, paths: [" + two + "]}]",
          "eval={every: 10, steps: 3}"};
}

struct Case {
  const char* name;
  int world;
  Strings settings;
};

class EvalOfARun : public ::testing::TestWithParam<Case> {};

TEST_P(EvalOfARun, GivesItsOwnLossesBitForBit) {
  Job job;
  Strings settings = OnText(job);
  settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
  const int world = GetParam().world;
  const Outcome run = world == 1 ? job.Train(settings) : job.Launch(world, settings);
  ASSERT_EQ(run.code, 0) << run.Text();
  std::map<std::string, Json> recorded;
  for (const Json& eval : OfKind(ReadMetrics(job.run_dir()), "eval")) {
    recorded[eval["name"]] = eval["loss"];
  }
  ASSERT_EQ(recorded.size(), 2u);
  const std::vector<std::string> files = job.dir().List();
  const Outcome outcome = Eval({"--checkpoint", job.run_dir(), "--json"}, world);
  const Json sets = SetsOf(outcome);
  ASSERT_EQ(sets.size(), 2u) << outcome.Text();
  for (const Json& set : sets) {
    EXPECT_EQ(set["loss"], recorded[set["name"]]) << outcome.Text();
    EXPECT_EQ(set["perplexity"], std::exp(set["loss"].get<double>()));
  }
  EXPECT_EQ(job.dir().List(), files);  // It writes nothing.
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, EvalOfARun,
    ::testing::Values(
        Case{"OneRank", 1, {}}, Case{"ThreeRanks", 3, {"train.micro_batch_size=1"}},
        Case{"Averaged", 2, {"train.ema={decay: 0.5}", "eval={every: 10, steps: 3, ema: true}"}},
        Case{"BFloat16",
             2,
             {"fsdp.mixed_precision={param_dtype: bf16, grad_dtype: bf16, master_dtype: bf16, "
              "keep_fp32: ['*ln_*']}"}},
        Case{"PartlyFrozen",
             2,
             {"fsdp.quantize={gather: int8, min_size: 1}",
              "optimizer.groups=[{match: '*mlp*', frozen: true}]"}},
        Case{"PartlyFrozenInOneUnit",
             3,
             {"fsdp={quantize: {gather: fp8, min_size: 1}, auto_wrap: {policy: none}}",
              "optimizer.groups=[{match: '*attn*', frozen: true}]", "train.micro_batch_size=1"}},
        Case{"PartlyFrozenBySize",
             2,
             {"fsdp={quantize: {gather: int8, min_size: 1, block: 64}, auto_wrap: {policy: size, "
              "min_num_params: 20000}}",
              "optimizer.groups=[{match: '*wte*', frozen: true}]"}},
        Case{"Adapters",
             1,
             {std::string("model={hidden_size: null, num_hidden_layers: null, num_attention_heads: "
                          "null, max_position_embeddings: null, vocab_size: null, init_from: ") +
                  kWeights + ", lora: {rank: 2, targets: [c_attn]}}",
              "data.train.tokenizer=bytes", "data.valid[0].tokenizer=bytes",
              "data.valid[1].tokenizer=bytes", "optimizer.lr=0.5"}},
        Case{"Offloaded",
             2,
             {"fsdp={sharding_strategy: hybrid_shard, shard_size: 1, "
              "cpu_offload: {params: true, optimizer: true}}",
              "train.activation_checkpointing=full"}}),
    [](const auto& info) { return info.param.name; });

TEST(Eval, OfAllOfASetAndByAnotherRecipe) {
  Job job;
  ASSERT_EQ(job.Train(OnText(job)).code, 0);
  const std::string latest = job.run_dir() + "/checkpoints/step_10";
  const Json some = SetsOf(Eval({"--checkpoint", latest, "--json"})),
             all = SetsOf(Eval({"--checkpoint", latest, "--json", "--full"}));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(some[0]["tokens"], 3 * 4 * 16);
  EXPECT_EQ(all[1]["tokens"], 1900 / 16 * 16 - (1900 % 16 == 0 ? 16 : 0));
  EXPECT_GT(all[0]["tokens"], 5000);
  // Ranks share the work, and the sum is rounded elsewhere.
  const Json shared = SetsOf(Eval({"--checkpoint", latest, "--json", "--full"}, 3));
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(shared[0]["tokens"], all[0]["tokens"]);
  EXPECT_NEAR(shared[0]["loss"].get<double>(), all[0]["loss"].get<double>(), 1e-5);
  // People's form, and a set that the run did not have.
  const Outcome named = Eval({"--checkpoint", job.run_dir(), "--set",
                              "data.valid={paths: [" + (job.dir() / "two.txt") + "]}"});
  EXPECT_EQ(named.code, 0) << named.Text();
  EXPECT_TRUE(Has(named.out, latest + ": step 10, ") && Has(named.out, "perplexity") &&
              Has(named.out, "data.valid"))
      << named.out;
  // The recipe that it is given in place of its own.
  Strings flags = {"--checkpoint", job.run_dir(), "--json", "--config", job.recipe()};
  for (const std::string& setting : OnText(job)) flags.insert(flags.end(), {"--set", setting});
  EXPECT_EQ(SetsOf(Eval(flags)), some);
}

// As many ranks as there are, whatever the run had.
TEST(Eval, OnRanksThatTheShardSizeIsNotFor) {
  const struct {
    int world;
    std::string sharding, strategy;
    int eval_world;
    std::string line;
  } cases[] = {
      {2, "shard_size: 2, sharding_strategy: ", "hybrid_shard", 1,
       "evaluated with `full_shard` over 1 rank: the recipe's `hybrid_shard` with fsdp.shard_size: "
       "2 is for a multiple of 2 ranks"},
      {2, "shard_size: 2, sharding_strategy: ", "hybrid_shard_grad_op", 3,
       "evaluated with `shard_grad_op` over 3 ranks: the recipe's `hybrid_shard_grad_op` with "
       "fsdp.shard_size: 2 is for a multiple of 2 ranks"},
      {4, "shard_size: 4, reshard_after_forward: 2, sharding_strategy: ", "full_shard", 2,
       "evaluated with `full_shard` over 2 ranks: the recipe's `full_shard` with "
       "fsdp.shard_size: 4 is for 4 ranks"},
      {4, "reshard_after_forward: 2, sharding_strategy: ", "full_shard", 2, ""},
  };
  for (const auto& c : cases) {
    Job job;
    Strings settings = OnText(job);
    settings.insert(settings.end(),
                    {"train.micro_batch_size=1", "fsdp={" + c.sharding + c.strategy + "}"});
    const Outcome run = job.Launch(c.world, settings);
    ASSERT_EQ(run.code, 0) << run.Text();
    const Outcome shown = Eval({"--checkpoint", job.run_dir()}, c.eval_world);
    EXPECT_EQ(shown.code, 0) << shown.Text();
    EXPECT_TRUE(Has(shown.out, c.line + "\n")) << shown.Text();
    EXPECT_EQ(Has(shown.out, "evaluated with"), !c.line.empty()) << shown.Text();
    const Outcome outcome = Eval({"--checkpoint", job.run_dir(), "--json"}, c.eval_world);
    const Json sets = SetsOf(outcome);
    ASSERT_EQ(sets.size(), 2u) << outcome.Text();
    EXPECT_TRUE(Has(outcome.err + outcome.out, c.line)) << outcome.Text();
    const std::vector<Json> recorded = OfKind(ReadMetrics(job.run_dir()), "eval");
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(sets[i]["loss"].get<double>(), recorded[i]["loss"].get<double>(), 1e-5);
    }
    // Not where somebody asks for it.
    const Outcome refused =
        Eval({"--checkpoint", job.run_dir(), "--set", "fsdp.shard_size=5"}, c.eval_world);
    EXPECT_EQ(refused.code, 2) << refused.Text();
    EXPECT_TRUE(Has(refused.err, "--set fsdp.shard_size=5: fsdp.shard_size: want ")) << refused.err;
  }
}

TEST(Eval, OfAHuggingFaceDirectory) {
  Job job;
  const std::string text = job.dir().Write("text.txt", std::string(2000, 'a') + " b c d");
  const std::string recipe =
      job.dir().Write("eval.yaml", "model: {}\ndata: {train: {paths: [" + text +
                                       "], tokenizer: bytes}, valid: {fraction: 0.5}, seq_len: 8}\n"
                                       "train: {micro_batch_size: 2, global_batch_size: 4}\n");
  const Outcome outcome = Eval({"--checkpoint", kWeights, "--config", recipe, "--json"});
  const Json sets = SetsOf(outcome);
  ASSERT_EQ(sets.size(), 1u) << outcome.Text();
  // The wanted numbers come from a run that begins with these weights and learns nothing.
  ASSERT_EQ(Call({"--config", recipe, "--set", std::string("model.init_from=") + kWeights, "--set",
                  "train.steps=1", "--set", "optimizer.lr=0", "--set", "eval.every=1", "--set",
                  "run.dir=" + job.run_dir()})
                .code,
            0);
  EXPECT_EQ(sets[0]["loss"], OfKind(ReadMetrics(job.run_dir()), "eval").back()["loss"]);
}

std::vector<Json> LinesOf(const std::string& file) {
  std::vector<Json> lines;
  std::istringstream in(ReadFile(file));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

// The loss, the accuracy and the area under the curve by the lines of --predictions.
std::map<std::string, double> ByLines(const std::vector<Json>& lines) {
  double loss = 0, right = 0, ahead = 0, pairs = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& line = lines[i];
    EXPECT_EQ(line["sample"], i);
    const auto label = line["label"].get<size_t>();
    if (line.contains("class")) {
      const auto all = line["probabilities"].get<std::vector<double>>();
      EXPECT_EQ(line["class"], std::max_element(all.begin(), all.end()) - all.begin());
      loss -= std::log(all[label]);
      right += line["class"] == label ? 1 : 0;
      continue;
    }
    const double p = line["probability"];
    loss -= std::log(label == 1 ? p : 1 - p);
    for (const Json& other : lines) {
      if (label == 0 || other["label"] == 1) continue;
      const double q = other["probability"];
      ahead += p > q ? 1 : p == q ? 0.5 : 0;
      ++pairs;
    }
  }
  const auto n = static_cast<double>(lines.size());
  return {{"loss", loss / n}, {"accuracy", right / n}, {"auc", ahead / pairs}};
}

// The predictions have the loss and the accuracy that eval reports, on any number of ranks.
TEST(Eval, PredictsImagesAndClicks) {
  Job job;
  const std::string images = job.dir().Write(
      "images.yaml",
      "model: {family: vit, image_size: 6, patch_size: 3, num_channels: 1, num_labels: 3,\n"
      "  hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, initializer_range: 0.3}\n"
      "data: {train: {source: synthetic}, valid: {source: synthetic}}\n"
      "eval: {every: 2, steps: 3}\n"
      "train: {steps: 2, micro_batch_size: 4, global_batch_size: 10}\n");
  const std::string clicks = job.dir().Write(
      "clicks.yaml",
      "model: {family: dhen, dense_columns: 4, table_rows: [24, 40], table_width: 16,\n"
      "  dense_vectors: 4, num_vectors: 10, num_hidden_layers: 1, num_attention_heads: 2,\n"
      "  cross_rank: 16, intermediate_size: 32}\n"
      "data: {train: {source: clicks, planted: 100}, valid: {fraction: 0.3}}\n"
      "eval: {every: 2, steps: 3}\n"
      "train: {steps: 2, micro_batch_size: 4, global_batch_size: 10}\n");
  for (const std::string& recipe : {images, clicks}) {
    const std::string run = job.RunDir(recipe == images ? "images" : "clicks");
    ASSERT_EQ(Call({"--config", recipe, "--set", "run.dir=" + run}).code, 0);
    std::vector<Json> alone;
    for (const int world : {1, 3}) {
      const std::string file = run + std::to_string(world) + ".jsonl";
      const Outcome outcome = Eval({"--checkpoint", run, "--json", "--predictions", file}, world);
      const Json set = SetsOf(outcome)[0];
      const std::vector<Json> lines = LinesOf(file);
      ASSERT_EQ(std::ssize(lines), set["tokens"].get<int64_t>()) << outcome.Text();
      std::map<std::string, double> want = ByLines(lines);
      EXPECT_NEAR(set["loss"].get<double>(), want["loss"], 1e-5);
      const char* const other = recipe == images ? "accuracy" : "auc";
      EXPECT_NEAR(set[other].get<double>(), want[other], 1e-12);
      if (world == 1) alone = lines;
      for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["label"], alone[i]["label"]);
    }
  }
  const Outcome text = Eval({"--checkpoint", job.run_dir(), "--predictions", job.dir() / "p"});
  EXPECT_TRUE(Has(text.out, "data.valid: AUC 0.") && Has(text.out, "p: 30 predictions"))
      << text.Text();
  const Outcome tokens = Eval({"--checkpoint", kWeights, "--config", job.recipe(), "--set",
                               "data.valid={source: synthetic}", "--predictions", "p", "--set",
                               "model={hidden_size: null, num_hidden_layers: null, "
                               "num_attention_heads: null, max_position_embeddings: null, "
                               "vocab_size: null}"});
  EXPECT_EQ(tokens.code, 2) << tokens.Text();
  EXPECT_TRUE(Has(tokens.err, "--predictions: a `gpt2` predicts tokens")) << tokens.err;
}

TEST(Eval, RefusesWhatItCannotEvaluate) {
  Job job;
  const std::string recipe = job.recipe();
  ASSERT_EQ(job.Train({"train.steps=2"}).code, 0);
  const std::string checkpoint = job.run_dir() + "/checkpoints/step_2";
  const struct {
    Strings flags;
    int code;
    Strings parts;
  } cases[] = {
      {{"--checkpoint", job.run_dir()}, 2, {"data.valid", "nothing to evaluate", "--set"}},
      {{"--checkpoint", job.dir() / "none"}, 5, {job.dir() / "none"}},
      {{"--checkpoint", kWeights}, 2, {"give --config"}},
      {{"--checkpoint", kWeights, "--config", recipe, "--set", "eval.ema=true", "--set",
        "train.ema={decay: 0.5}", "--set", "data.valid={source: synthetic}", "--set",
        "model={hidden_size: null, num_hidden_layers: null, num_attention_heads: null, "
        "max_position_embeddings: null, vocab_size: null}"},
       2,
       {"eval.ema", "no averaged weights"}},
      {{"--checkpoint", checkpoint, "--set", "data.valid={source: synthetic}", "--set",
        "train.ema={decay: 0.5}", "--set", "eval.ema=true"},
       5,
       {checkpoint, "no state 'ema'"}},
      {{"--checkpoint", checkpoint, "--set", "model.hidden_size=32", "--set",
        "data.valid={source: synthetic}"},
       2,
       {"model.hidden_size"}},
      {{"--checkpoint", checkpoint, "--set", "data.valid={source: synthetic}", "--set",
        "run.device=sim"},
       2,
       {"run.device", "computes no loss"}},
      {{"--checkpoint", checkpoint, "--sett", "x"}, 2, {"--sett"}},
  };
  for (const auto& c : cases) {
    const Outcome outcome = Eval(c.flags);
    EXPECT_EQ(outcome.code, c.code) << outcome.Text();
    EXPECT_EQ(outcome.out, "") << outcome.Text();
    for (const std::string& part : c.parts) EXPECT_TRUE(Has(outcome.err, part)) << outcome.Text();
  }
  const Outcome restarts = Call({"launch", "--nproc-per-node", "2", "--max-restarts", "1", "--",
                                 "eval", "--checkpoint", checkpoint});
  EXPECT_EQ(restarts.code, 2) << restarts.Text();
  EXPECT_TRUE(Has(restarts.err, "--max-restarts")) << restarts.err;
}

}  // namespace
}  // namespace fsdp::e2e
