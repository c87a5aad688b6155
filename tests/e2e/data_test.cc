// Where tokens come from, from outside: files of ids, mixtures, documents, named evaluations.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/run_binary.h"
#include "tests/testing/everything.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/manifest_writer.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

std::string Words(const std::vector<uint16_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 2};
}

std::string Shard(const std::vector<uint16_t>& tokens) {
  std::string header(1024, '\0');
  const int32_t words[] = {20240520, 1, static_cast<int32_t>(tokens.size())};
  std::memcpy(header.data(), words, sizeof(words));
  return header + Words(tokens);
}

// Tokens of the tiny model's vocabulary of 64; documents end at 63.
std::vector<uint16_t> Tokens(int seed, int size) {
  std::vector<uint16_t> tokens;
  uint32_t state = static_cast<uint32_t>(seed);
  for (int i = 0; i < size; ++i) {
    state = state * 1664525 + 1013904223;
    tokens.push_back(static_cast<uint16_t>(state >> 26));
  }
  return tokens;
}

std::vector<Json> Records(const TempDir& dir, const std::string& name, const std::string& kind) {
  std::vector<Json> records;
  for (Json record : OfKind(ReadMetrics(dir / name), kind)) {
    for (const char* key : {"step_time_s", "tokens_per_s", "targets_per_s", "samples_per_s",
                            "tflops_per_device", "memory", "time"}) {
      record.erase(key);
    }
    records.push_back(record);
  }
  return records;
}

Strings Mixed(const Job& job) {
  job.dir().Write("a_1.bin", Shard(Tokens(1, 700)));
  job.dir().Write("a_2.bin", Shard(Tokens(2, 300)));
  const std::string raw = job.dir().Write("raw", Words(Tokens(3, 400)));
  return {"data.train=[{source: tokens, paths: ['" + job.dir().path() +
              "/a_*.bin'], weight: 3, eot: 63}, {source: tokens, paths: [" + raw +
              "], dtype: uint16, eot: 63}, {source: synthetic, weight: 0.5, eot: 63}]",
          "data.documents=true",
          "data.valid=[{source: tokens, paths: [" + raw +
              "], dtype: uint16, eot: 63, name: raw}, {source: synthetic, eot: 0, name: 'a rule'}]",
          "train.global_batch_size=5",
          "eval={every: 4, steps: 2}",
          "checkpoint={every: 4, keep_last: 0}"};
}

TEST(Data, AMixtureOfDocumentsResumesAndKeepsItsOrderAtAnyWorld) {
  Job job;
  const Strings settings = Mixed(job);
  const auto run = [&](const std::string& name, int world, const std::string& steps) {
    Strings all = settings;
    all.insert(all.end(), {"run.dir=" + job.RunDir(name), "train.steps=" + steps});
    const Outcome outcome = world == 1 ? job.Train(all) : job.Launch(world, all);
    ASSERT_EQ(outcome.code, 0) << outcome.Text();
  };
  run("whole", 1, "12");
  run("parts", 1, "7");
  run("parts", 1, "12");
  EXPECT_EQ(Records(job.dir(), "parts", "step"), Records(job.dir(), "whole", "step"));
  run("three", 3, "12");
  const std::vector<Json> one = Records(job.dir(), "whole", "step"),
                          three = Records(job.dir(), "three", "step");
  ASSERT_EQ(one.size(), 12u);
  ASSERT_EQ(three.size(), 12u);
  for (size_t i = 0; i < one.size(); ++i) {
    // The same samples: target for target, and the same loss to rounding.
    EXPECT_EQ(three[i]["tokens"], one[i]["tokens"]);
    EXPECT_NEAR(three[i]["loss"], one[i]["loss"].get<double>(), 1e-5);
  }
  // Tokens that end a document have no target, about one of 64.
  EXPECT_LT(one[11]["tokens"], 12 * 5 * 16);
  EXPECT_GT(one[11]["tokens"], 12 * 5 * 16 * 9 / 10);
  // Three records of each name: steps 4, 8 and 12.
  const std::vector<Json> evals = Records(job.dir(), "whole", "eval");
  ASSERT_EQ(evals.size(), 6u);
  for (size_t i = 0; i < evals.size(); ++i) {
    EXPECT_EQ(evals[i]["step"], 4 * (i / 2 + 1));
    EXPECT_EQ(evals[i]["name"], i % 2 == 0 ? "raw" : "a rule");
    EXPECT_NEAR(Records(job.dir(), "three", "eval")[i]["loss"], evals[i]["loss"].get<double>(),
                1e-5);
  }
}

TEST(Data, HoldingOutOfEachSourceGivesOneUnnamedEvaluation) {
  Job job;
  Strings settings = Mixed(job);
  settings[2] = "data.valid={fraction: 0.25}";
  settings.push_back("train.steps=4");
  const Outcome outcome = job.Train(settings);
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  const std::vector<Json> evals = OfKind(ReadMetrics(job.run_dir()), "eval");
  ASSERT_EQ(evals.size(), 1u);
  EXPECT_FALSE(evals[0].contains("name"));
}

TEST(Data, BadTokensEndTheRunWithFileAndPlace) {
  Job job;
  std::vector<uint16_t> tokens = Tokens(1, 700);
  tokens[123] = 64;
  const std::string path = job.dir().Write("bad.bin", Shard(tokens));
  const auto train = [&](const std::string& file) {
    return job.Train({"data.train={source: tokens, paths: [" + file + "]}"});
  };
  const Outcome outside = train(path);
  EXPECT_EQ(outside.code, 4) << outside.Text();
  EXPECT_NE(outside.err.find(path + ", token 123: token 64 is outside the vocabulary of 64"),
            std::string::npos)
      << outside.err;
  const Outcome cut = train(job.dir().Write("cut.bin", Shard(tokens).substr(0, 2000)));
  EXPECT_EQ(cut.code, 4) << cut.Text();
  EXPECT_NE(cut.err.find("cut.bin: its header says 700 tokens of uint16, but 976 bytes follow"),
            std::string::npos)
      << cut.err;
  EXPECT_FALSE(Exists(job.run_dir()));
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void FlipBit(const std::string& path, size_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const int was = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(was ^ 1 << bit % 8));
}

class ChangedDataTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    fs::create_directories(job_.dir() / "d");
    job_.dir().Write("d/a.bin", Shard(Tokens(1, 700)));
    job_.dir().Write("d/b.bin", Shard(Tokens(2, 900)));
    job_.dir().Write("valid.bin", Shard(Tokens(3, 200)));
  }
  Outcome Run(const std::string& steps, const Strings& more = {}) {
    Strings all = {"data.train={source: tokens, paths: ['" + job_.dir().path() + "/d*/*.bin']}",
                   "data.valid={source: tokens, paths: [" + job_.dir() / "valid.bin" + "]}",
                   "checkpoint={every: 3, keep_last: 0}", "eval={every: 3, steps: 1}",
                   "train.steps=" + steps};
    all.insert(all.end(), more.begin(), more.end());
    return GetParam() == 1 ? job_.Train(all) : job_.Launch(GetParam(), all);
  }

  Job job_;
};

TEST_P(ChangedDataTest, IsRefusedOnAResumeAndTakenWhereThatIsAsked) {
  const std::string a = job_.dir() / "d/a.bin", b = job_.dir() / "d/b.bin";
  std::mt19937_64 random(20261122);  // The bits that are flipped.
  const struct {
    const char* what;
    std::function<void()> change;
    std::vector<std::string> said;
  } changes[] = {
      {"a bit",
       [&] { FlipBit(a, 8 * 1024 + random() % (16 * 700) / 16 * 16); },
       {a + ": has 2424 bytes with hash ", ", but the run was trained on 2424 bytes with hash "}},
      {"content",
       [&] { job_.dir().Write("d/b.bin", Shard(Tokens(4, 900))); },
       {b + ": has 2824 bytes with hash ", ", but the run was trained on 2824 bytes with hash "}},
      {"a larger one",
       [&] { job_.dir().Write("d/a.bin", Shard(Tokens(1, 701))); },
       {a + ": has 2426 bytes with hash ", ", but the run was trained on 2424 bytes with hash "}},
      {"a new one",
       [&] { job_.dir().Write("d/c.bin", Shard(Tokens(5, 100))); },
       {job_.dir() / "d/c.bin" + ": the run was not trained on it, 1224 bytes with hash "}},
      {"a missing one",
       [&] { fs::remove(a); },
       {a + ": the run was trained on it, 2424 bytes with hash ", ", and it is missing"}},
      {"another order",
       [&] {
         fs::rename(a, job_.dir() / "d/x");
         fs::rename(b, a);
         fs::rename(job_.dir() / "d/x", b);
       },
       {a + ": the files are in another order: here the run had "}},
  };
  for (const auto& [what, change, said] : changes) {
    SCOPED_TRACE(what);
    fs::remove_all(job_.dir() / "d");
    SetUp();
    job_.RunDir(what);
    const Outcome first = Run("3");
    ASSERT_EQ(first.code, 0) << first.Text();
    const std::vector<Json> before = ReadMetrics(job_.run_dir());
    change();
    const Outcome refused = Run("6");
    EXPECT_EQ(refused.code, 4) << refused.Text();
    for (const std::string& part : said) EXPECT_TRUE(Has(refused.Text(), part)) << refused.Text();
    EXPECT_TRUE(Has(refused.Text(), "data.allow_changed: true")) << refused.Text();
    EXPECT_EQ(ReadMetrics(job_.run_dir()), before);
    EXPECT_FALSE(Exists(job_.run_dir() + "/checkpoints/step_6"));

    const Outcome allowed = Run("6", {"data.allow_changed=true"});
    ASSERT_EQ(allowed.code, 0) << allowed.Text();
    for (const std::string& part : said) EXPECT_TRUE(Has(allowed.Text(), part)) << allowed.Text();
    const std::vector<Json> resumes = OfKind(ReadMetrics(job_.run_dir()), "resume");
    ASSERT_EQ(resumes.size(), 1u);
    ASSERT_EQ(resumes[0]["data_changed"].size(), 1u) << resumes[0];
    EXPECT_TRUE(Has(resumes[0]["data_changed"][0], said[0])) << resumes[0];
    // From here on it is the run's data.
    const Outcome after = Run("9");
    ASSERT_EQ(after.code, 0) << after.Text();
    EXPECT_FALSE(OfKind(ReadMetrics(job_.run_dir()), "resume").back().contains("data_changed"));
  }
}

TEST_P(ChangedDataTest, MayMoveAndEvaluationsMayDiffer) {
  ASSERT_EQ(Run("3").code, 0);
  fs::rename(job_.dir() / "d", job_.dir() / "d_moved");
  const Outcome moved = Run("6");
  ASSERT_EQ(moved.code, 0) << moved.Text();
  EXPECT_FALSE(Has(moved.Text(), "was trained on")) << moved.Text();
  FlipBit(job_.dir() / "valid.bin", 8 * 1030);
  const Outcome other = Run("9");
  ASSERT_EQ(other.code, 0) << other.Text();
  EXPECT_TRUE(Has(other.Text(), "data.valid: " + job_.dir() / "valid.bin" + ": has 1424 bytes"))
      << other.Text();
  const std::vector<Json> resumes = OfKind(ReadMetrics(job_.run_dir()), "resume");
  ASSERT_EQ(resumes.size(), 2u);
  EXPECT_FALSE(resumes[0].contains("data_changed"));
  EXPECT_EQ(resumes[1]["data_changed"].size(), 1u);

  // An imported checkpoint says nothing of data.
  const std::string directory = job_.run_dir() + "/checkpoints/step_9";
  Manifest manifest = ReadManifest(directory);
  EXPECT_EQ(manifest.meta.data->train.size(), 2u);
  EXPECT_EQ(manifest.meta.data->valid.size(), 1u);
  manifest.meta.data.reset();
  std::ofstream(directory + "/manifest.json", std::ios::binary) << ManifestToText(manifest);
  FlipBit(job_.dir() / "d_moved/a.bin", 8 * 1030);
  const Outcome unknown = Run("12");
  ASSERT_EQ(unknown.code, 0) << unknown.Text();
  EXPECT_TRUE(Has(unknown.Text(), "does not say what the run was trained on")) << unknown.Text();
}

INSTANTIATE_TEST_SUITE_P(Worlds, ChangedDataTest, ::testing::Values(1, 2));

class ShrinkingDataTest : public ::testing::TestWithParam<int> {};

// At moments from the start on: wherever it meets the run, the file is named, the checkpoints are
// whole, and with the file as it was the run goes on.
TEST_P(ShrinkingDataTest, EndsTheRunWithItsNameAtAnyMoment) {
  const uint64_t kSeed = 8 + testing::Part(180);
  constexpr int kRounds = 4;
  std::printf("seed %llu, %d rounds\n", static_cast<unsigned long long>(kSeed), kRounds);
  std::mt19937_64 random(kSeed + static_cast<uint64_t>(GetParam()));
  int met_running = 0;
  for (int round = 0; round < kRounds; ++round) {
    Job job;
    const bool text = round % 2 == 1;
    std::string contents = Shard(Tokens(1, 30000));
    if (text) contents.assign(50000, '7');
    const std::string path = job.dir().Write("shrinks", contents);
    const std::string other = job.dir().Write("stays", contents);
    const Strings settings = {std::string("data.train={source: ") +
                                  (text ? "text" : "tokens, eot: 63") + ", paths: [" + path + ", " +
                                  other + "]}",
                              std::string("data.documents=") + (text ? "false" : "true"),
                              "model.vocab_size=256",
                              "checkpoint={every: 7, keep_last: 2}",
                              "data.valid={fraction: 0.1}",
                              "eval={every: 5, steps: 2}"};
    const auto with_steps = [&](const std::string& steps) {
      Strings all = settings;
      all.push_back("train.steps=" + steps);
      return all;
    };
    Process run =
        job.Start(GetParam() == 1 ? job.Flags(with_steps("1000000"))
                                  : job.LaunchArguments(GetParam(), with_steps("1000000")));
    // Text that is shorter from the start on is data like any other.
    if (text || round % 4 == 2) Eventually([&] { return LastStep(job.run_dir()) > 0; });
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1500));
    const uintmax_t left = random() % contents.size();
    const bool running = LastStep(job.run_dir()) > 0;
    met_running += running;
    fs::resize_file(path, left);
    const Outcome outcome = run.Wait();
    SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(left) + " bytes left");
    ASSERT_EQ(outcome.code, 4) << outcome.Text();
    EXPECT_TRUE(Has(outcome.err, path + ": ")) << outcome.Text();
    if (running) {
      EXPECT_TRUE(Has(outcome.err, path + ": has become shorter while it was read, from " +
                                       std::to_string(contents.size()) + " to " +
                                       std::to_string(left) + " bytes"))
          << outcome.Text();
    }
    const std::string checkpoints = job.run_dir() + "/checkpoints";
    if (!Exists(checkpoints + "/latest")) continue;
    const Outcome verified = Call({"checkpoint", "verify", job.run_dir()});
    EXPECT_EQ(verified.code, 0) << verified.Text();
    // While it is short the run does not go on.
    const int64_t last = LastStep(job.run_dir()) + 5;
    const Outcome refused = job.Train(with_steps(std::to_string(last)));
    EXPECT_EQ(refused.code, 4) << refused.Text();
    job.dir().Write("shrinks", contents);
    const Outcome resumed = job.Train(with_steps(std::to_string(last)));
    EXPECT_EQ(resumed.code, 0) << resumed.Text();
    EXPECT_EQ(LastStep(job.run_dir()), last);
  }
  EXPECT_GE(met_running, kRounds / 2);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShrinkingDataTest, ::testing::Values(1, 2));

TEST(Data, HeldOutTextThatNobodyEvaluatesIsSaid) {
  Job job;
  const std::string said = "eval.every: 0 never evaluates them";
  EXPECT_TRUE(Has(job.Train({"data.valid={fraction: 0.05}"}).out,
                  "data.valid: the last 5 % of the data are held out, and " + said));
  job.RunDir("none");
  EXPECT_FALSE(Has(job.Train({"data.valid=null"}).out, said));
  job.RunDir("evaluated");
  EXPECT_FALSE(
      Has(job.Train({"data.valid={fraction: 0.05}", "eval={every: 5, steps: 1}"}).out, said));
  const auto check = [&](const std::string& every) {
    return Call({"config", "check", "--config", job.recipe(), "--set", "eval.every=" + every,
                 "--set", "data.valid={fraction: 0.05}"})
        .out;
  };
  EXPECT_TRUE(Has(check("0"), "validation  the last 5 % of it, held out and never evaluated"));
  EXPECT_FALSE(Has(check("5"), "never evaluated"));
}

TEST(Data, IsShownBeforeAStepIsSpent) {
  Job job;
  const std::string text = "It is a text of a line.\nAnd \x1b[31m another line is behind it.\n";
  const std::string path = job.dir().Write("a.txt", text);
  const auto data = [&](const std::string& paths, const Strings& more) {
    Strings command =
        job.Flags({"data.train={source: text, paths: [" + paths + "]}", "model.vocab_size=256",
                   "data.shuffle=false", "data.valid={fraction: 0.3}", "eval.every=5"});
    command.insert(command.begin(), "data");
    command.insert(command.end(), more.begin(), more.end());
    return Call(command);
  };
  const Outcome shown = data(path, {"--samples", "2"});
  EXPECT_EQ(shown.code, 0) << shown.Text();
  EXPECT_TRUE(Has(shown.out, "sample 0 of data.train, " + path + ", byte 0\n") &&
              Has(shown.out, "17 tokens, 16 targets\n") &&
              Has(shown.out, "\nI\u00abt is a text of a\u00bb\n") &&
              Has(shown.out, "data.train: samples 2, tokens 32\n") &&
              Has(shown.out, "data.valid: samples 1, targets 16\n"))
      << shown.out;
  EXPECT_FALSE(Has(shown.out, "\x1b")) << shown.out;  // No terminal, and none of the text's.
  const Json page = Json::parse(data(path, {"--json", "--samples", "1"}).out);
  EXPECT_EQ(page["samples"][0]["texts"][0]["text"], text.substr(0, 17));
  EXPECT_EQ(page["valid"][0]["samples"], 1);
  EXPECT_FALSE(Exists(job.run_dir()));
  // A mistake of the data is the run's.
  const Outcome wrong = data("/no/a.txt", {}),
                run = job.Train(
                    {"data.train={source: text, paths: [/no/a.txt]}", "model.vocab_size=256"});
  EXPECT_EQ(wrong.code, 4) << wrong.Text();
  EXPECT_EQ(run.code, 4) << run.Text();
  EXPECT_TRUE(Has(run.err, wrong.err)) << run.err << wrong.err;
  EXPECT_EQ(wrong.out, "");
}

const std::string kTokenizer = "tests/fixtures/tokenizers/gpt2.json";

std::string Prose() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "The jargon of line " + std::to_string(i * i) + " it is.\n";
  return text;
}

TEST(Tokenizers, TextIsTokenisedOnceAndGivesTheRunOfItsTokens) {
  Job job;
  const std::string text = job.dir().Write("text.txt", Prose());
  const Strings common = {
      "model.vocab_size=1001", "data.cache=" + job.dir() / "cache",
      "train.steps=4",         "eval={every: 2, sample: {prompt: The, max_tokens: 9}}",
      "data.documents=true",   "data.valid={fraction: 0.1}"};
  const auto with = [&](const std::string& name, const std::string& source) {
    Strings all = common;
    all.insert(all.end(), {"run.dir=" + job.RunDir(name), "data.train=" + source});
    return all;
  };
  const std::string source = "{source: text, paths: [" + text + "], tokenizer: " + kTokenizer + "}";
  const Outcome first = job.Launch(3, with("first", source));
  ASSERT_EQ(first.code, 0) << first.Text();
  // One rank wrote, whichever it was.
  const size_t at = first.out.find("tokenising ");
  ASSERT_NE(at, std::string::npos) << first.out;
  EXPECT_EQ(first.out.find("tokenising ", at + 1), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("sample: The"), std::string::npos) << first.out;
  const Outcome second = job.Launch(3, with("second", source));
  EXPECT_EQ(second.out.find("tokenising "), std::string::npos) << second.out;

  const std::string out = job.dir() / "tokens";
  const Outcome made =
      Call({"tokenize", "--tokenizer", kTokenizer, "--out", out, "--shard-tokens", "500", text});
  ASSERT_EQ(made.code, 0) << made.Text();
  EXPECT_NE(made.out.find(" tokens of 1 document in "), std::string::npos) << made.out;
  const Outcome third = job.Launch(
      3, with("third", "{source: tokens, paths: [" + out + "], tokenizer: " + kTokenizer + "}"));
  ASSERT_EQ(third.code, 0) << third.Text();
  for (const char* kind : {"step", "eval"}) {
    EXPECT_EQ(Records(job.dir(), "second", kind), Records(job.dir(), "first", kind));
    EXPECT_EQ(Records(job.dir(), "third", kind), Records(job.dir(), "first", kind));
  }
  EXPECT_FALSE(Records(job.dir(), "third", "eval").empty());
}

TEST(Tokenizers, ADamagedCacheAndAnotherTokenizerAreSeen) {
  Job job;
  const std::string tokenizer = job.dir().Write("t.json", ReadFile(kTokenizer));
  const Strings settings = {
      "model.vocab_size=1001", "data.cache=" + job.dir() / "cache", "checkpoint.every=3",
      "data.train={source: text, paths: [" + job.dir().Write("text.txt", Prose()) +
          "], tokenizer: " + tokenizer + "}"};
  const auto run = [&](const std::string& steps) {
    Strings all = settings;
    all.push_back("train.steps=" + steps);
    return job.Train(all);
  };
  const Outcome first = run("3");
  ASSERT_EQ(first.code, 0) << first.Text();
  std::string shard;
  for (const auto& entry : fs::recursive_directory_iterator(job.dir() / "cache")) {
    if (entry.path().filename() == "tokens_00000.bin") shard = entry.path();
  }
  FlipBit(shard, 8 * 2000);
  const Outcome damaged = run("6");
  EXPECT_EQ(damaged.code, 4) << damaged.Text();
  const std::string set = fs::path(shard).parent_path();
  EXPECT_TRUE(Has(damaged.err, "kept in " + set + " are damaged: delete that directory"))
      << damaged.err;
  fs::remove_all(set);
  const Outcome again = run("6");
  ASSERT_EQ(again.code, 0) << again.Text();
  // The same text in other tokens is other data.
  std::string changed = ReadFile(tokenizer);
  changed.insert(changed.find('{') + 1, " ");
  job.dir().Write("t.json", changed);
  const Outcome other = run("9");
  EXPECT_EQ(other.code, 4) << other.Text();
  EXPECT_TRUE(Has(other.err, tokenizer + ": has ")) << other.err;
}

TEST(Tokenizers, TokenizeSaysWhatItLeavesOut) {
  const TempDir dir;
  const std::string lines = dir.Write(
      "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\"}\n\n{\"text\": \"t\xe2\x82wo\xff\"}\n");
  const Outcome outcome = Call(
      {"tokenize", "--tokenizer", kTokenizer, "--out", dir / "out", "--allow-invalid-text", lines});
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  EXPECT_TRUE(Has(outcome.out, " tokens of 2 documents in 1 shard, ")) << outcome.out;
  EXPECT_TRUE(Has(outcome.out,
                  "1 empty document left out; 2 places that are no UTF-8, read as U+FFFD: the "
                  "first is " +
                      lines + ", byte 41"))
      << outcome.out;
}

TEST(Tokenizers, MistakesEndTheRunBeforeItBegins) {
  Job job;
  const std::string text = job.dir().Write("text.txt", Prose());
  const auto train = [&](const std::string& tokenizer, const std::string& vocab) {
    return job.Train(
        {"model.vocab_size=" + vocab, "data.cache=" + job.dir() / "cache",
         "data.train={source: text, paths: [" + text + "], tokenizer: " + tokenizer + "}"});
  };
  const Outcome small = train(kTokenizer, "1000");
  EXPECT_EQ(small.code, 2) << small.Text();
  EXPECT_NE(small.err.find("has 1001 tokens, but model.vocab_size is 1000: set model.vocab_size: "
                           "1001\n"),
            std::string::npos)
      << small.err;
  const Outcome missing = train(job.dir() / "none.json", "1001");
  EXPECT_EQ(missing.code, 4) << missing.Text();
  EXPECT_NE(missing.err.find("none.json: No such file"), std::string::npos) << missing.err;
  const Outcome wrong =
      train(job.dir().Write("wrong.json", "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}"),
            "1001");
  EXPECT_EQ(wrong.code, 4) << wrong.Text();
  EXPECT_NE(wrong.err.find("wrong.json: model `WordPiece` is not supported"), std::string::npos)
      << wrong.err;
  EXPECT_FALSE(Exists(job.run_dir()));
  const Outcome usage = Call({"tokenize", "--tokenizer", "bytes", text});
  EXPECT_EQ(usage.code, 2) << usage.Text();
}

}  // namespace
}  // namespace fsdp::e2e
