// Data of a model with an encoder and a decoder, from a recipe to losses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "models/family.h"
#include "tests/testing/fresh_directory.h"
#include "tests/trainer/loop/train_ranks.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/utf8.h"
#include "trainer/data/pairs/pair_batch.h"
#include "trainer/generate/generator.h"
#include "trainer/generate/sampler.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/setup.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::FreshDirectory;
using testing::UnusedPath;
using Strings = std::vector<std::string>;

constexpr const char* kModel =
    "{family: t5, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, head_dim: 8, "
    "vocab_size: 300}";

Recipe Load(const std::string& data, const Strings& more = {}) {
  return ParseRecipe({{"r.yaml", std::string("model: ") + kModel + "\ndata: " + data +
                                     "\nrun: {threads: 1, timeout_s: 60}\n"
                                     "train: {steps: 4, micro_batch_size: 2, "
                                     "global_batch_size: 5}\neval: {every: 4}\n"
                                     "schedule: {name: constant}\n"}},
                     more);
}

std::string Text() {
  const std::string path = FreshDirectory("text") + "/a.txt";
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the " + std::to_string(i * i) + "th of many words; ";
  WriteAtomicFile(path, text);
  return path;
}

std::string Lines(const std::string& extra = "") {
  const std::string path = FreshDirectory("lines") + "/a.jsonl";
  std::string text;
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    text += R"({"input": "say )" + n + R"(", "target": "it is )" + n + "\"}\n";
  }
  WriteAtomicFile(path, text + extra);
  return path;
}

std::string SpanData(const std::string& more = "") {
  return "{train: {paths: [" + Text() + "], eot: 256}, seq_len: 32, objective: span_corruption" +
         more + "}";
}

RunData Open(const Recipe& recipe) {
  return OpenData(recipe, ShapeFor(recipe), 1, 1, recipe.data.valid);
}

std::string ErrorOf(const Recipe& recipe, ExitCode code) {
  try {
    Open(recipe);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "none";
}

TEST(Pairs, SpansAreFedToTheModel) {
  const Recipe recipe = Load(SpanData());
  const SpanLengths spans = *LongestText({}, 32);
  const ModelShape shape = ShapeFor(recipe);
  const BatchSpec spec = BuildModel(recipe, shape)->Inputs(recipe.data.seq_len);
  EXPECT_EQ(spec.targets, spans.target());
  const RunData data = Open(recipe);
  ASSERT_EQ(data.valid.size(), 1u);
  EXPECT_EQ(data.train->TargetsOfStep(3), 5 * spans.target());
  std::vector<std::byte> bytes(static_cast<size_t>(BatchBytes(spec, 2)));
  const Batch batch = CarveBatch(spec, 2, bytes.data());
  data.train->MicroBatch(1, 0, 0, batch);
  const PairRow row = RowOf(batch, 1);
  EXPECT_EQ(row.length, spans.input());
  EXPECT_EQ(row.input[static_cast<size_t>(row.length) - 1], 256);
  EXPECT_EQ(std::count(row.input.begin(), row.input.end(), 299), 1);  // The first sentinel.
  EXPECT_EQ(row.target[0], 299);
}

TEST(Pairs, TargetsAreAsLongAsIsSaid) {
  const auto targets = [](const std::string& data) {
    const Recipe recipe = Load(data);
    return BuildModel(recipe, ShapeFor(recipe))->Inputs(recipe.data.seq_len).targets;
  };
  EXPECT_EQ(targets(SpanData(", target_len: 40")), 40);
  const std::string pairs =
      "{train: {source: pairs, paths: [x], eot: 256}, seq_len: 20, "
      "objective: seq2seq";
  EXPECT_EQ(targets(pairs + "}"), 20);
  EXPECT_EQ(targets(pairs + ", target_len: 12}"), 12);
}

TEST(Pairs, LinesAreFedToTheModel) {
  const std::string cache = FreshDirectory("cache");
  const Recipe recipe = Load("{train: {source: pairs, paths: [" + Lines() +
                             "], eot: 256}, seq_len: 12, objective: seq2seq, shuffle: false, "
                             "valid: {fraction: 0.2}, cache: " +
                             cache + "}");
  const RunData data = Open(recipe);
  const BatchSpec spec = BuildModel(recipe, ShapeFor(recipe))->Inputs(12);
  std::vector<std::byte> bytes(static_cast<size_t>(BatchBytes(spec, 2)));
  const Batch batch = CarveBatch(spec, 2, bytes.data());
  data.train->MicroBatch(1, 0, 0, batch);
  const PairRow row = RowOf(batch, 1);
  const auto text = [](std::span<const int32_t> tokens) {
    std::string all;
    for (const int32_t t : tokens) all += t == 0 ? "." : t == 256 ? "$" : std::string(1, char(t));
    return all;
  };
  EXPECT_EQ(text(row.input), "say 1$......");
  EXPECT_EQ(text(row.target), "it is 1$....");
  EXPECT_EQ(text(row.decoder), ".it is 1$...");
  EXPECT_EQ(row.length, 6);
  EXPECT_EQ(data.train->TargetsOfStep(1), 5 * 8);
}

// Two ranks train to one's losses, a run goes on where it was, and both say no more than they are.
TEST(Pairs, ARunTrainsAndGoesOn) {
  const std::string data = SpanData();
  const auto losses = [&](int world, const std::string& dir, const std::string& steps) {
    std::string said;
    for (const std::string& end : testing::TrainRanks(
             world, Load(data, {"run.dir=" + dir, "train.steps=" + steps}), &said)) {
      EXPECT_EQ(end, "0 ") << said;
    }
    return said;
  };
  const std::string one = losses(1, UnusedPath("one"), "4"),
                    two = losses(2, UnusedPath("two"), "4");
  const auto eval = [](const std::string& said) {
    const size_t at = said.find("eval at step 4: loss ");
    EXPECT_NE(at, std::string::npos) << said;
    return said.substr(at, 27);
  };
  EXPECT_EQ(eval(one), eval(two));
  EXPECT_NE(one.find("generate --checkpoint "), std::string::npos) << one;
  const std::string dir = UnusedPath("resumed");
  losses(1, dir, "2");
  EXPECT_EQ(eval(losses(1, dir, "4")), eval(one));
}

// The likeliest target of a prompt is that which `generate` makes of the weights saved then, whose
// passes go over a cache.
TEST(Pairs, ASampleIsWhatGenerateMakes) {
  const std::string dir = UnusedPath("sampled");
  const std::string kPrompts[] = {"say 3", "a prompt that is longer than an input can be"};
  for (const std::string& prompt : kPrompts) {
    const Recipe recipe =
        Load("{train: {source: pairs, paths: [" + Lines() +
                 "], eot: 256}, seq_len: 20, target_len: 10, objective: seq2seq, valid: {fraction: "
                 "0.2}, cache: " +
                 FreshDirectory("cache") + "}",
             {"run.dir=" + dir + prompt.substr(0, 3), "optimizer.lr=0.01",
              "eval.sample={prompt: " + prompt + ", max_tokens: 40, temperature: 0}"});
    std::string said;
    EXPECT_EQ(testing::TrainRanks(2, recipe, &said), Strings(2, "0 ")) << said;
    const std::string line = "sample: " + prompt + " -> ";
    const size_t at = said.rfind(line);
    ASSERT_NE(at, std::string::npos) << said;
    const size_t begin = at + line.size();
    const std::string sample = said.substr(begin, said.find('\n', begin) - begin);

    std::vector<int32_t> input(prompt.begin(),
                               prompt.begin() + std::min<size_t>(prompt.size(), 19));
    input.push_back(256);
    Generator generator(OpenStoredModel(recipe.run.Directory()),
                        {.rows = 1, .capacity = 10, .input = std::ssize(input)});
    GenerateOptions how;
    how.max_tokens = 10;
    how.sampling.temperature = 0;
    how.vocab = 300;
    for (int32_t id = 257; id < 300; ++id) how.never.push_back(id);
    how.eos = {256};
    const Continuation made = Generate(generator, {input}, how)[0];
    std::string text;
    for (const int32_t id : made.tokens) text += static_cast<char>(id);
    EXPECT_EQ(sample, Printable(text)) << said;
    EXPECT_FALSE(text.empty());
  }
}

TEST(Pairs, WrongDataIsNamed) {
  const std::string cache = FreshDirectory("cache");
  const auto pairs = [&](const std::string& line, const std::string& more = "") {
    return Load("{train: {source: pairs, paths: [" + Lines(line) +
                    "], eot: 256}, seq_len: 12, objective: seq2seq, valid: null, cache: " + cache +
                    more + "}",
                {"eval.every=0"});
  };
  const std::string lacks = ErrorOf(pairs("{\"input\": \"x\"}\n"), ExitCode::kData);
  EXPECT_NE(lacks.find("a.jsonl, line 21: has no field `target`: `completion` of the recipe's"),
            std::string::npos)
      << lacks;
  const std::string longer = R"({"input": "a far longer input", "target": "x"})";
  const std::string error = ErrorOf(pairs(longer + "\n"), ExitCode::kData);
  EXPECT_NE(error.find("line 21: an input of 19 tokens, more than data.seq_len = 12: raise it"),
            std::string::npos)
      << error;
  EXPECT_EQ(ErrorOf(pairs(longer + "\n", ", too_long: drop"), ExitCode::kData), "none");
}

TEST(Pairs, SentinelsAreTheTokenizers) {
  const Recipe recipe = Load("{train: {paths: [" + Text() +
                                 "], tokenizer: tests/fixtures/tokenizers/sp_unigram.model, "
                                 "eot: 1}, seq_len: 32, objective: span_corruption}",
                             {"model.vocab_size=5000", "data.cache=" + FreshDirectory("cache")});
  EXPECT_EQ(ErrorOf(recipe, ExitCode::kUsage),
            recipe.Mistake("data.train.tokenizer",
                           "tests/fixtures/tokenizers/sp_unigram.model has no token "
                           "`<extra_id_0>`: a sample loses 2 spans, in whose places "
                           "`<extra_id_0>` and so on stand. Raise data.mean_span, or name another "
                           "tokenizer"));
}

}  // namespace
}  // namespace fsdp
