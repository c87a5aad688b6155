// Hugging Face directories in and out of the real binary.
#include <gtest/gtest.h>

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
  EXPECT_TRUE(Has(import.out, "not looked at: attn_pdrop")) << import.out;
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

TEST(HuggingFace, ARunSaysWhichKeysItDidNotLookAt) {
  Job job;
  const std::string theirs = job.dir() / "theirs";
  fs::create_directory(theirs);
  fs::copy_file(std::string(kFixture) + "/model.safetensors", theirs + "/model.safetensors");
  Json config = Json::parse(ReadFile(std::string(kFixture) + "/config.json"));
  config["some_future_key"] = 3;
  std::ofstream(theirs + "/config.json") << config.dump();
  const Outcome run = job.Launch(2, {From(theirs)});
  ASSERT_EQ(run.code, 0) << run.Text();
  const auto says = [&](int rank) {
    return Has(ReadFile(job.run_dir() + "/logs/rank_" + std::to_string(rank) + ".log"),
               "config.json: not looked at: ") &&
           Has(ReadFile(job.run_dir() + "/logs/rank_" + std::to_string(rank) + ".log"),
               "some_future_key");
  };
  EXPECT_TRUE(says(0));
  EXPECT_FALSE(says(1));  // Once.
}

}  // namespace
}  // namespace fsdp::e2e
