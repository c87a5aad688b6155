// Where tokens come from, from outside: files of ids, mixtures, documents, named evaluations.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

std::string Words(const std::vector<uint16_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 2};
}

std::string Shard(const std::vector<uint16_t>& tokens) {
  std::string header(1024, '\0');
  const int32_t words[] = {20240520, 1, static_cast<int32_t>(tokens.size())};
  std::memcpy(header.data(), words, sizeof(words));
  return header + Words(tokens);
}

// Of the tiny model's vocabulary of 64; documents end at 63.
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
    for (const char* key : {"step_time_s", "tokens_per_s", "tflops_per_device", "memory", "time"}) {
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
  EXPECT_NE(made.out.find(" tokens of 1 documents in "), std::string::npos) << made.out;
  const Outcome third = job.Launch(
      3, with("third", "{source: tokens, paths: [" + out + "], tokenizer: " + kTokenizer + "}"));
  ASSERT_EQ(third.code, 0) << third.Text();
  for (const char* kind : {"step", "eval"}) {
    EXPECT_EQ(Records(job.dir(), "second", kind), Records(job.dir(), "first", kind));
    EXPECT_EQ(Records(job.dir(), "third", kind), Records(job.dir(), "first", kind));
  }
  EXPECT_FALSE(Records(job.dir(), "third", "eval").empty());
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
  EXPECT_NE(small.err.find("has 1001 tokens, but model.vocab_size is 1000"), std::string::npos)
      << small.err;
  const Outcome missing = train(job.dir() / "none.json", "1001");
  EXPECT_EQ(missing.code, 4) << missing.Text();
  EXPECT_NE(missing.err.find("none.json: No such file"), std::string::npos) << missing.err;
  const Outcome wrong =
      train(job.dir().Write("wrong.json", "{\"model\": {\"type\": \"Unigram\"}}"), "1001");
  EXPECT_EQ(wrong.code, 4) << wrong.Text();
  EXPECT_NE(wrong.err.find("wrong.json: model `Unigram` is not supported"), std::string::npos)
      << wrong.err;
  EXPECT_FALSE(Exists(job.run_dir()));
  const Outcome usage = Call({"tokenize", "--tokenizer", "bytes", text});
  EXPECT_EQ(usage.code, 2) << usage.Text();
}

}  // namespace
}  // namespace fsdp::e2e
