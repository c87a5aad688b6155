// The texts of a plan and of a recipe's check.
#include <gtest/gtest.h>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

constexpr char kTokenizer[] = "tests/fixtures/tokenizers/gpt2.json";

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Strings PlanOf(const Job& job, const Strings& settings, const std::string& world = "1") {
  Strings plan = {"plan", "--world-size", world, "--config", job.recipe()};
  for (const std::string& setting : settings) {
    plan.push_back("--set");
    plan.push_back(setting);
  }
  return plan;
}

TEST(PlanText, BeginsWithModelStepAndMachine) {
  Job job;
  const Outcome plan = Call(PlanOf(job, {}, "2"));
  EXPECT_EQ(plan.code, 0) << plan.Text();
  EXPECT_TRUE(
      plan.out.starts_with("gpt2, 2 layers x 16, 7,872 parameters, in steps of 4 x 16 = 64 tokens\n"
                           "on cpu, 2 ranks: this machine, "))
      << plan.out;
  EXPECT_TRUE(Has(plan.out, "\nmemory of each of 2 ranks\n")) << plan.out;
  EXPECT_TRUE(Has(Call(PlanOf(job, {})).out, "\nmemory of the rank\n"));
}

// The size that the cure names fits, and twice as much does not.
TEST(PlanText, NamesTheMicroBatchThatFits) {
  Job job;
  const Strings big = {"train.micro_batch_size=512", "train.global_batch_size=512",
                       "checkpoint.async=false"};
  const auto planned = [&](const std::string& size) {
    Strings plan = PlanOf(job, big);
    plan.insert(plan.end(), {"--set", "train.micro_batch_size=" + size, "--json"});
    return Json::parse(Call(plan).out)["memory"]["allocated_peak"].get<int64_t>();
  };
  Strings limited = big;
  limited.push_back("run.memory_limit=" + std::to_string(planned("100")));
  const Outcome plan = Call(PlanOf(job, limited));
  EXPECT_EQ(plan.code, 3) << plan.Text();
  EXPECT_TRUE(Has(plan.out, "fits: no")) << plan.out;
  EXPECT_TRUE(Has(plan.err, "does not fit: a rank needs ")) << plan.err;
  EXPECT_TRUE(Has(plan.err, " train.micro_batch_size: 64: ")) << plan.err;
  limited.emplace_back("train.micro_batch_size=64");
  EXPECT_EQ(Call(PlanOf(job, limited)).code, 0);
  limited.back() = "train.micro_batch_size=128";
  EXPECT_EQ(Call(PlanOf(job, limited)).code, 3);
}

TEST(PlanText, HelpExplainsItsWords) {
  const Outcome help = Call({"plan", "--help"});
  EXPECT_EQ(help.code, 0) << help.Text();
  for (const char* word : {"\n  unsharded ", "\n  snapshot ", "\n  outside ", "\n  all-gather "}) {
    EXPECT_TRUE(Has(help.out, word)) << word << help.out;
  }
}

class Check : public ::testing::Test {
 protected:
  Outcome Of(const Strings& settings) const {
    Strings check = job_.Flags(settings);
    check.insert(check.begin(), {"config", "check"});
    return Call(check);
  }
  std::string Text() const { return job_.dir().Write("a.txt", "It is one line of text.\n"); }

  // `config check`, --dry-run and a run end alike.
  void ExpectRefused(const Strings& settings, int code, const std::string& why) const {
    Strings dry = job_.Flags(settings);
    dry.emplace_back("--dry-run");
    for (const Outcome& outcome : {Of(settings), Call(dry), job_.Train(settings)}) {
      EXPECT_EQ(outcome.code, code) << outcome.Text();
      EXPECT_TRUE(Has(outcome.err, why)) << outcome.err << "\nwant " << why;
      EXPECT_FALSE(Has(outcome.out, "ok\n")) << outcome.out;
    }
    EXPECT_FALSE(Exists(job_.run_dir()));
  }

  Job job_;
};

TEST_F(Check, OpensDataAndTokenizer) {
  const std::string vocab = "model.vocab_size=50257";
  ExpectRefused({"data.train={source: text, paths: [/no/x.txt]}", "model.vocab_size=256"}, 4,
                "data.train.paths: /no/x.txt");
  ExpectRefused({"data.train={source: text, paths: [" + Text() + "]}", "model.vocab_size=256",
                 "eval.every=5", "data.valid={source: text, paths: [/no/*.txt]}"},
                4, "data.valid.paths: /no/*.txt");
  ExpectRefused(
      {"data.train={source: text, paths: [" + Text() + "], tokenizer: /no/t.json}", vocab}, 4,
      "data.train.tokenizer: /no/t.json: No such file");
  ExpectRefused(
      {"data.train={source: text, paths: [/no/x.txt], tokenizer: " + std::string(kTokenizer) + "}",
       vocab},
      4, "data.train.paths: /no/x.txt");
  const std::string weights =
      job_.dir().Write("b.txt", std::string("\x93NUMPY\x01\x00v\x00{}", 12));
  ExpectRefused(
      {"data.train={source: text, paths: [" + weights + "], tokenizer: " + kTokenizer + "}", vocab},
      4, weights);
  const std::string tokens = job_.dir().Write("t.bin", std::string("\xff\xff\x00\x00", 4));
  ExpectRefused({"data.train={source: tokens, paths: [" + tokens + "], dtype: uint16}",
                 "data.seq_len=1", "train={micro_batch_size: 1, global_batch_size: 1}"},
                4, "65535");
}

TEST_F(Check, NotesIdleRanksFewCoresAndRowsThatNeverTrain) {
  Strings command = job_.Flags({"data.train={source: text, paths: [" + Text() + "]}",
                                "model.vocab_size=512", "run.device=cpu"});
  command.insert(command.begin(), {"config", "check"});
  command.insert(command.end(), {"--world-size", "9999"});
  const Outcome many = Call(command);
  EXPECT_EQ(many.code, 0) << many.Text();
  for (const char* note : {" of 9999 ranks have no samples", "9999 ranks on ",
                           "the vocabulary has 512 rows and the tokenizer 256 tokens"}) {
    EXPECT_TRUE(Has(many.out, note)) << many.out;
  }
  const Outcome one =
      Of({"data.train={source: text, paths: [" + Text() + "]}", "model.vocab_size=511"});
  EXPECT_FALSE(Has(one.out, "note ")) << one.out;
}

TEST_F(Check, TokenisesNothing) {
  const std::string cache = job_.dir() / "cache";
  const Outcome check = Of({"data.train={source: text, paths: [" + Text() +
                                "], tokenizer: " + std::string(kTokenizer) + "}",
                            "data.cache=" + cache, "model.vocab_size=50257"});
  EXPECT_EQ(check.code, 0) << check.Text();
  EXPECT_TRUE(check.out.starts_with("ok\n")) << check.out;
  EXPECT_FALSE(Exists(cache));
}

}  // namespace
}  // namespace fsdp::e2e
