// A user's mistake: one clear message, the exit code of docs/training.md, and nothing on the disk.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

void ExpectContains(const std::string& text, const Strings& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
  }
}

int64_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// One line that has all of `parts`, `code`, nothing on stdout, no run directory.
void ExpectRefused(const Job& job, const Outcome& outcome, int code, const Strings& parts,
                   int64_t lines = 1) {
  EXPECT_EQ(outcome.code, code) << outcome.Text();
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(Lines(outcome.err), lines) << outcome.err;
  ExpectContains(outcome.err, parts);
  EXPECT_FALSE(Exists(job.run_dir()));
}

// The job's recipe with another file on top.
Outcome TrainWith(const Job& job, const std::string& path) {
  Strings flags = job.Flags();
  flags.insert(flags.begin() + 2, {"--config", path});
  return Call(flags);
}

TEST(Recipe, UnknownKeyNamesPlaceAndNearest) {
  Job job;
  const std::string path = job.dir().Write("a.yaml", "train: {steps: 3}\nmodel: {hiden_size: 3}\n");
  ExpectRefused(job, TrainWith(job, path), 2, {path + ":2:9: ", "hiden_size", "hidden_size"});
}

// A word without a flag: the line says what to type.
TEST(Recipe, WordsThatAreNoFlagsSayWhichFlag) {
  const Strings mistakes[] = {
      {"tiny.yaml", "fsdp-train --config tiny.yaml"},
      {"optimizer.lr=3", "fsdp-train --set optimizer.lr=3"},
      {"--config", "a.yaml", "--set", "train.steps=2", "b.yaml", "fsdp-train --config b.yaml"},
      {"launch", "tiny.yaml", "fsdp-train launch -- --config tiny.yaml"},
      {"launch", "--", "tiny.yaml", "fsdp-train launch -- --config tiny.yaml"},
      {"launch", "--", "--set", "run.seed=1", "lr=3", "fsdp-train launch -- --set lr=3"}};
  for (const Strings& mistake : mistakes) {
    const Outcome outcome = Call(Strings(mistake.begin(), mistake.end() - 1));
    EXPECT_EQ(outcome.code, 2) << outcome.Text();
    ExpectContains(outcome.err, {*(mistake.end() - 2), mistake.back() + "\n"});
  }
}

TEST(Recipe, DuplicateKeyNamesBothLines) {
  Job job;
  const std::string path = job.dir().Write("a.yaml", "train: {steps: 3}\ntrain: {steps: 4}\n");
  ExpectRefused(job, TrainWith(job, path), 2, {path + ":2:1: ", "duplicate", "line 1"});
}

TEST(Recipe, ContradictionsAndShapes) {
  Job job;
  ExpectRefused(job, job.Train({"fsdp.shard_size=2"}), 2, {"fsdp.shard_size", "hybrid"});
  ExpectRefused(job, job.Train({"fsdp={sharding_strategy: hybrid_shard, shard_size: 2}"}), 2,
                {"fsdp.shard_size", "divisor"});
  ExpectRefused(job, job.Train({"model.num_attention_heads=3"}), 2, {"num_attention_heads", "16"});
  ExpectRefused(job, job.Train({"data.seq_len=17"}), 2,
                {"data.seq_len", "17", "max_position_embeddings", "16"});
  ExpectRefused(job, job.Train({"data.train={source: text, paths: [x]}"}), 2,
                {"vocab_size", "256", "64"});
  ExpectRefused(job, job.Train({"train.global_batch_size=0"}), 2, {"global_batch_size", "0"});
}

TEST(Recipe, GroupsThatMatchNothing) {
  Job job;
  const std::string groups = "[{match: '*.biass', lr_scale: 2}, {match: '*', frozen: true}]";
  ExpectRefused(job, job.Train({"optimizer.groups=" + groups}), 2,
                {"optimizer.groups[0].match", "`*.biass` matches no parameter", "ln_f",
                 "every parameter is frozen"},
                /*lines=*/2);
}

TEST(Recipe, IsRefusedOnceNotByEveryRank) {
  Job job;
  // Only the launcher knows two of these mistakes.
  const Outcome outcome = job.Launch(
      3, {"train.stepz=3", "fsdp.shard_size=2", "checkpoint.resume=none"}, {"--max-restarts", "1"});
  ExpectRefused(job, outcome, 2,
                {"train.stepz", "steps", "fsdp.shard_size", "world size 3", "checkpoint.resume",
                 "--max-restarts"},
                /*lines=*/3);
  for (const std::string one : {"4", "step_4"}) {  // Each restart would go back again.
    const Outcome back = job.Launch(2, {"checkpoint.resume=" + one}, {"--max-restarts", "1"});
    EXPECT_EQ(back.code, 2) << back.Text();
    ExpectContains(back.err, {"checkpoint.resume", "--max-restarts", "go back to it again"});
  }
  EXPECT_FALSE(Exists(job.run_dir()));
}

TEST(Data, MissingEmptyShortOrADirectory) {
  Job job;
  const std::string empty = job.dir().Write("empty", ""), brief = job.dir().Write("brief", "abc");
  const auto with = [&](const std::string& path) {
    return job.Train(
        {"model.vocab_size=256", "data.train.source=text", "data.train.paths=['" + path + "']"});
  };
  ExpectRefused(job, with("/nonexistent/x"), 4,
                {"data.train.paths: /nonexistent/x: does not exist"});
  ExpectRefused(job, with(job.dir() / "x*"), 4, {job.dir() / "x*", "matches no file"});
  ExpectRefused(job, with(empty), 4, {empty, "empty"});
  ExpectRefused(job, with(brief), 4, {brief, "3 tokens", "17"});
  std::filesystem::create_directory(job.dir() / "sub");
  ExpectRefused(job, with(job.dir() / "sub"), 4,
                {"data.train.paths: ", "is a directory without text files"});
}

TEST(Data, WhatIsNoTextIsRefusedWithItsFormatAndACure) {
  Job job;
  const auto with = [&](const std::string& path, const Strings& more = {}) {
    Strings settings = {"model.vocab_size=256", "data.train={source: text, paths: " + path + "}"};
    settings.insert(settings.end(), more.begin(), more.end());
    return job.Train(settings);
  };
  const std::string text(1000, 'x');
  const std::string parquet = job.dir().Write("a.txt", "PAR1\x15\x04" + text + "PAR1");
  ExpectRefused(job, with(parquet), 4, {parquet + ": is Parquet, not text: ", "read_parquet"});
  const std::string zero = job.dir().Write("b.txt", text + std::string(1, '\0'));
  ExpectRefused(job, with(zero), 4, {zero + ": is no text (byte 1000 is zero): "});
  const std::string latin = job.dir().Write("c.txt", text + "\xe9\xe9");
  const std::string invalid = latin + ": 2 of 1002 places are no UTF-8, the first at byte 1000";
  ExpectRefused(job, with(latin), 4, {invalid, "iconv", "data.allow_invalid_text: true"});
  const Outcome allowed = with(latin, {"data.allow_invalid_text=true"});
  EXPECT_EQ(allowed.code, 0) << allowed.Text();
  ExpectContains(allowed.out, {"data.allow_invalid_text: " + invalid + ": kept as bytes"});
}

TEST(Data, MissingUnderLaunchExitsWithItsCode) {
  Job job;
  const Outcome outcome = job.Launch(
      2, {"model.vocab_size=256", "data.train.source=text", "data.train.paths=[/nonexistent/x]"});
  EXPECT_EQ(outcome.code, 4) << outcome.Text();
  ExpectContains(outcome.err, {"/nonexistent/x", "failed first: exit code 4, data"});
  EXPECT_FALSE(Exists(job.run_dir()));
}

// Mistakes that only the model can tell are told with the recipe's own, by the launcher, once.
TEST(Recipe, TheModelsMistakesComeWithTheRecipes) {
  Job job;
  const Strings settings = {"optimizer.lr=-1", "optimizer.groups=[{match: nobody}, {match: ' '}]"};
  const Outcome outcome = job.Launch(2, settings);
  EXPECT_EQ(outcome.code, 2) << outcome.Text();
  ExpectContains(outcome.err,
                 {"optimizer.lr: want", "groups[0].match: `nobody` matches no parameter",
                  "groups[1].match: ` ` matches no parameter"});
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 3) << outcome.err;
  EXPECT_FALSE(Exists(job.run_dir()));
}

TEST(Memory, WhatDoesNotFitSaysWhatWould) {
  Job job;
  const Strings settings = {"model.preset=gpt2-124m",
                            "model.hidden_size=768",
                            "model.num_hidden_layers=12",
                            "model.num_attention_heads=12",
                            "model.vocab_size=50257",
                            "model.max_position_embeddings=1024",
                            "train.micro_batch_size=10000",
                            "train.global_batch_size=10000",
                            "data.seq_len=1024"};
  const Outcome train = job.Train(settings);
  EXPECT_EQ(train.code, 3) << train.Text();
  EXPECT_EQ(train.out, "");
  ExpectContains(train.err,
                 {"does not fit", "available", "it fits with", "train.micro_batch_size"});
  Strings dry = job.Flags(settings);
  dry.push_back("--dry-run");
  const Outcome dry_run = Call(dry);
  EXPECT_EQ(dry_run.code, 3) << dry_run.Text();
  ExpectContains(dry_run.out, {"fits: no"});
  ExpectContains(dry_run.err, {"it fits with"});
  EXPECT_FALSE(Exists(job.run_dir()));
  Strings plan = {"plan", "--json", "--world-size", "1", "--config", job.recipe()};
  for (const std::string& setting : settings) {
    plan.push_back("--set");
    plan.push_back(setting);
  }
  const Outcome planned = Call(plan);
  EXPECT_EQ(planned.code, 3) << planned.Text();
  EXPECT_EQ(Json::parse(planned.out)["fits"], false);
}

TEST(Plan, NamesWhatTheWorldRefusesWithTheRest) {
  Job job;
  Strings words = job.Flags({"train.stepz=3", "fsdp.shard_size=2", "fsdp.quantize.block=3"});
  words.insert(words.begin(), {"plan", "--world-size", "3"});
  ExpectRefused(job, Call(words), 2, {"train.stepz", "fsdp.shard_size", "fsdp.quantize.block"},
                /*lines=*/3);
}

TEST(Plan, RanksOfAHostDivideTheWorld) {
  Job job;
  for (const char* local : {"3", "8"}) {
    const Outcome outcome =
        Call({"plan", "--config", job.recipe(), "--world-size", "4", "--local-world-size", local});
    EXPECT_EQ(outcome.code, 2) << outcome.Text();
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err,
              std::string("--local-world-size: ") + local + " does not divide --world-size 4\n");
  }
}

TEST(RunDirectory, ThatCannotBeMadeOrWritten) {
  Job job;
  const std::string file = job.dir().Write("file", "x");
  for (const std::string& path : {file + "/run", file, std::string("/proc/run")}) {
    const Outcome outcome = job.Train({"run.dir=" + path});
    EXPECT_EQ(outcome.code, 5) << outcome.Text();
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(Lines(outcome.err), 1);
    ExpectContains(outcome.err, {path});
  }
  EXPECT_EQ(ReadFile(file), "x");
  const Outcome launched = job.Launch(2, {"run.dir=" + file + "/run"});
  EXPECT_EQ(launched.code, 5) << launched.Text();
  ExpectContains(launched.err, {"[0] ", file + "/run", "failed first: exit code 5"});
}

TEST(RunDirectory, ThatHoldsARunIsLeftAlone) {
  Job job;
  ASSERT_EQ(job.Train().code, 0);
  const auto all_files = [&] {
    std::string text;
    for (const char* name :
         {"recipe.yaml", "metrics.jsonl", "provenance.json", "logs/rank_0.log"}) {
      text += ReadFile(job.run_dir() + "/" + name);
    }
    return text;
  };
  const std::vector<std::string> names = job.dir().List();
  const std::string before = all_files();
  const auto expect_refused = [&](const Strings& settings, int code, const Strings& parts,
                                  int lines) {
    for (const bool dry_run : {false, true}) {
      Strings flags = job.Flags(settings);
      if (dry_run) flags.push_back("--dry-run");
      const Outcome outcome = Call(flags);
      EXPECT_EQ(outcome.code, code) << outcome.Text();
      EXPECT_EQ(Lines(outcome.err), lines) << outcome.err;
      ExpectContains(outcome.err, parts);
      EXPECT_EQ(all_files(), before);
    }
  };
  expect_refused({"checkpoint.resume=none"}, 5, {job.run_dir(), "holds a run"}, 1);
  expect_refused({"optimizer.lr=0.5", "train.steps=99"}, 2,
                 {"optimizer.lr", "0.01", "0.5", "checkpoint.allow_changed: [optimizer.lr]"}, 1);
  expect_refused({"model.hidden_size=32", "train.steps=99"}, 2,
                 {"model.hidden_size", "another run (run.name)"}, 2);
  // It is complete, too.
  expect_refused({"optimizer.lr=0.5"}, 2,
                 {"optimizer.lr", "the run there is complete, at step", "another run.name"}, 2);
  // Free to change, so this one goes on.
  const Outcome longer = job.Train({"train.steps=12"});
  EXPECT_EQ(longer.code, 0) << longer.Text();
}

TEST(Environment, HalfALauncher) {
  Job job;
  ExpectRefused(job, job.Train({}, {{"RANK", "0"}}), 2, {"WORLD_SIZE"});
  ExpectRefused(job, job.Train({}, Torchrun(2, 2, 29500)), 2, {"RANK", "2"});
}

// A port of the loopback device that is taken while this lives.
class TakenPort {
 public:
  TakenPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { close(fd_); }
  int port() const { return port_; }

 private:
  int fd_, port_ = 0;
};

TEST(Environment, PortInUse) {
  Job job;
  const TakenPort taken;
  ExpectRefused(job, job.Train({}, Torchrun(0, 2, taken.port())), 6,
                {std::to_string(taken.port()), "Address already in use"});
}

TEST(Loss, ThatIsNotFiniteEndsTheRun) {
  for (const int world : {1, 3}) {
    Job job;
    const Strings settings = {"optimizer.lr=1.0e+30", "optimizer.name=sgd", "train.grad_clip=0"};
    const Outcome outcome = world == 1 ? job.Train(settings) : job.Launch(world, settings);
    EXPECT_EQ(outcome.code, 7) << outcome.Text();
    ExpectContains(outcome.err, {"step 2: ", "not finite", "optimizer.lr"});
    const std::vector<Json> records = ReadMetrics(job.run_dir());
    ASSERT_EQ(OfKind(records, "step").size(), 2u);
    EXPECT_TRUE(OfKind(records, "step")[1]["loss"].is_null());
    ASSERT_EQ(OfKind(records, "skipped").size(), 1u);
    EXPECT_EQ(OfKind(records, "skipped")[0]["step"], 2);
    EXPECT_EQ(records.back()["kind"], "end");
    ExpectContains(records.back()["reason"], {"not finite"});
  }
}

TEST(FullDisk, EndsTheRunWithOneError) {
  for (const int world : {1, 2}) {
    Job job;
    const Strings settings = {"train.steps=1000000"};
    Process run = world == 1 ? job.Start(job.Flags(settings))
                             : job.Start(job.LaunchArguments(world, settings));
    ASSERT_TRUE(Eventually([&] { return LastStep(job.run_dir()) > 5; }));
    // Its files may grow no more, as on a full disk.
    const rlimit none = {1, 1};
    const pid_t rank_0 = world == 1 ? run.pid() : RanksOf(run.pid()).at(0);
    ASSERT_EQ(prlimit(rank_0, RLIMIT_FSIZE, &none, nullptr), 0);
    const Outcome outcome = run.Wait();
    EXPECT_EQ(outcome.code, 5) << outcome.Text();
    EXPECT_GT(OfKind(ReadMetrics(job.run_dir()), "step").size(), 5u);  // All whole lines.
    EXPECT_EQ(ReadFile(job.run_dir() + "/metrics.jsonl").back(), '\n');
    // A rank under launch has a pipe for its errors.
    if (world == 2) ExpectContains(outcome.err, {"failed first: exit code 5"});
  }
}

}  // namespace
}  // namespace fsdp::e2e
