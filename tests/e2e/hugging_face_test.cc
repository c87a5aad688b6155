// Hugging Face directories in and out of the real binary.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

const char kFixture[] = "tests/fixtures/gpt2/one_head";

Outcome Checkpoint(const Strings& arguments) {
  Strings all = {"checkpoint"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return Call(all);
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// In place of the recipe's shape that of the files.
std::string From(const std::string& directory) {
  return "model={hidden_size: null, num_hidden_layers: null, num_attention_heads: null, "
         "vocab_size: "
         "null, max_position_embeddings: null, init_from: " +
         directory + "}";
}

TEST(HuggingFace, ImportTrainExport) {
  Job job;
  const std::string imported = job.dir() / "imported";
  const Outcome import = Checkpoint({"import", kFixture, "--out", imported});
  ASSERT_EQ(import.code, 0) << import.Text();
  EXPECT_TRUE(Has(import.out, "not looked at: summary_activation")) << import.out;
  EXPECT_EQ(Checkpoint({"verify", imported}).code, 0);

  // What was never trained comes out as it went in.
  const std::string back = job.dir() / "back";
  ASSERT_EQ(Checkpoint({"export", imported, "--out", back}).code, 0);
  const Json config = Json::parse(ReadFile(back + "/config.json"));
  EXPECT_EQ(config["model_type"], "gpt2");
  EXPECT_EQ(config["architectures"], Json({"GPT2LMHeadModel"}));
  EXPECT_EQ(config["n_embd"], 64);

  // A run from either is the same run; what it saved is exported in every dtype.
  const auto train = [&](const std::string& name, const std::string& from) {
    job.RunDir(name);
    const Outcome run =
        job.Launch(2, {From(from), "train={steps: 3, ema: {decay: 0.5}}", "checkpoint.every=3"});
    EXPECT_EQ(run.code, 0) << run.Text();
    return OfKind(ReadMetrics(job.run_dir()), "step").back()["loss"].dump();
  };
  const std::string loss = train("theirs", fs::absolute(kFixture));
  EXPECT_EQ(train("ours", imported), loss);
  EXPECT_EQ(train("back", back), loss);
  for (const Strings& flags : {Strings{},
                               {"--dtype", "bf16"},
                               {"--dtype", "fp16", "--ema"},
                               {"--max-shard-size", "10KB"}}) {
    const std::string out = job.dir() / "out";
    Strings arguments = {"export", job.run_dir(), "--out", out};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome exported = Checkpoint(arguments);
    ASSERT_EQ(exported.code, 0) << exported.Text();
    EXPECT_EQ(Exists(out + "/model.safetensors.index.json"),
              flags.size() == 2 && flags[1] == "10KB");
    EXPECT_EQ(Checkpoint({"import", out, "--out", job.dir() / "again"}).code, 0);
    fs::remove_all(out);
    fs::remove_all(job.dir() / "again");
  }
}

TEST(HuggingFace, MistakesHaveTheirExitCodes) {
  Job job;
  const std::string imported = job.dir() / "imported", out = job.dir() / "out";
  ASSERT_EQ(Checkpoint({"import", kFixture, "--out", imported}).code, 0);
  EXPECT_EQ(Checkpoint({"import", kFixture, "--out", imported}).code, 5);
  EXPECT_EQ(Checkpoint({"import", imported, "--out", out}).code, 5);
  EXPECT_EQ(Checkpoint({"export", kFixture, "--out", out}).code, 5);
  EXPECT_EQ(Checkpoint({"export", imported, "--out", out, "--ema"}).code, 5);
  EXPECT_EQ(Checkpoint({"export", imported, "--out", out, "--dtype", "int8"}).code, 2);
  for (const char* size : {"5XB", "GB", "0", "-1GB", "1e30GB", "5GBs"}) {
    const Outcome outcome =
        Checkpoint({"export", imported, "--out", out, "--max-shard-size", size});
    EXPECT_EQ(outcome.code, 2) << size << outcome.Text();
  }
  EXPECT_FALSE(Exists(out));
  // What is no run's cannot be resumed, and says what to do.
  const Outcome resume = job.Train({"checkpoint.resume=" + imported});
  EXPECT_EQ(resume.code, 5) << resume.Text();
  EXPECT_TRUE(Has(resume.err, "was imported")) << resume.err;
  EXPECT_TRUE(Has(resume.err, "model.init_from")) << resume.err;
}

// The fixture with other keys in its config.json.
std::string Altered(const Job& job, const std::string& name, const Json& members) {
  const std::string directory = job.dir() / name;
  fs::create_directory(directory);
  fs::copy_file(std::string(kFixture) + "/model.safetensors", directory + "/model.safetensors");
  Json config = Json::parse(ReadFile(std::string(kFixture) + "/config.json"));
  config.merge_patch(members);
  std::ofstream(directory + "/config.json") << config.dump();
  return directory;
}

TEST(HuggingFace, ARunSaysWhichKeysItDidNotLookAt) {
  Job job;
  const Outcome run = job.Launch(2, {From(Altered(job, "theirs", {{"some_future_key", 3}}))});
  ASSERT_EQ(run.code, 0) << run.Text();
  const size_t said = run.out.find("config.json: not looked at: some_future_key");
  EXPECT_NE(said, std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("not looked at", said + 40), std::string::npos) << "once: " << run.out;
  EXPECT_TRUE(Has(ReadFile(job.run_dir() + "/logs/rank_0.log"), "some_future_key"));
}

TEST(HuggingFace, DropoutsAreTakenOverAndSaid) {
  Job job;
  const std::string theirs = Altered(job, "theirs", {{"attn_pdrop", 0.25}, {"resid_pdrop", 0.125}});
  const auto loss = [&](const std::string& name, const Strings& more) {
    job.RunDir(name);
    Strings settings = {From(theirs), "checkpoint.every=10"};
    settings.insert(settings.end(), more.begin(), more.end());
    const Outcome run = job.Train(settings);
    EXPECT_EQ(run.code, 0) << run.Text();
    EXPECT_EQ(
        Has(run.out, "taken over: model.residual_dropout 0.125, model.attention_dropout 0.25"),
        more.empty())
        << run.out;
    return OfKind(ReadMetrics(job.run_dir()), "step").back()["loss"].dump();
  };
  const std::string taken = loss("taken", {});
  EXPECT_EQ(loss("given", {"model.residual_dropout=0.125", "model.attention_dropout=0.25"}), taken);
  const std::string attention =
      loss("half", {"model.residual_dropout=0", "model.attention_dropout=0.25"});
  EXPECT_NE(attention, taken);
  EXPECT_NE(loss("none", {"model.residual_dropout=0", "model.attention_dropout=0"}), attention);

  // A run keeps those it began with, and its export has them.
  const Outcome other = job.Train({From(theirs), "train.steps=12"});
  EXPECT_EQ(other.code, 2) << other.Text();
  EXPECT_TRUE(
      Has(other.err, "model.attention_dropout: the run to resume has 0.0, " + theirs +
                         " has 0.25: may not differ on a resume; give the recipe the run's"))
      << other.err;
  job.RunDir("taken");
  const Outcome resumed = job.Train({From(theirs), "train.steps=12", "checkpoint.every=12"});
  EXPECT_EQ(resumed.code, 0) << resumed.Text();
  const std::string out = job.dir() / "out";
  ASSERT_EQ(Checkpoint({"export", job.run_dir(), "--out", out}).code, 0);
  const Json config = Json::parse(ReadFile(out + "/config.json"));
  EXPECT_EQ(config["attn_pdrop"], 0.25);
  EXPECT_EQ(config["resid_pdrop"], 0.125);
  EXPECT_EQ(config["embd_pdrop"], 0.0);
}

}  // namespace
}  // namespace fsdp::e2e
