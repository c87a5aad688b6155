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

  // Weights that were never trained come out as they went in.
  const std::string back = job.dir() / "back";
  const Outcome exported = Checkpoint({"export", imported, "--out", back});
  ASSERT_EQ(exported.code, 0) << exported.Text();
  EXPECT_TRUE(Has(exported.out, " in fp32, as they came, 1 file")) << exported.out;
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
  EXPECT_EQ(train("run of it", back), loss);
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

TEST(HuggingFace, AFilesSizeIsInPowersOf1000OrOf1024) {
  Job job;
  const std::string imported = job.dir() / "imported", out = job.dir() / "out";
  ASSERT_EQ(Checkpoint({"import", kFixture, "--out", imported}).code, 0);
  int64_t total = 0;  // Bytes of all tensors, as an index says.
  const auto files = [&](const std::string& size) {
    const Outcome exported =
        Checkpoint({"export", imported, "--out", out, "--max-shard-size", size});
    EXPECT_EQ(exported.code, 0) << exported.Text();
    const std::string index = out + "/model.safetensors.index.json";
    if (Exists(index)) total = Json::parse(ReadFile(index))["metadata"]["total_size"];
    const auto count = std::count_if(
        fs::directory_iterator(out), fs::directory_iterator(),
        [](const fs::directory_entry& file) { return file.path().extension() == ".safetensors"; });
    fs::remove_all(out);
    return count;
  };
  EXPECT_GT(files("1B"), 2);
  // The least that holds it all: as many KB do not.
  const int64_t kib = (total + 1023) / 1024;
  ASSERT_LT(kib * 1000, total);
  EXPECT_EQ(files(std::to_string(kib) + "KiB"), 1);
  EXPECT_EQ(files(std::to_string(kib) + "KB"), 2);
  EXPECT_EQ(files(std::to_string(total)), 1);
  EXPECT_EQ(files(std::to_string(total - 1) + "B"), 2);
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
  // An imported checkpoint cannot be resumed, and the error says what to do instead.
  const Outcome resume = job.Train({"checkpoint.resume=" + imported});
  EXPECT_EQ(resume.code, 5) << resume.Text();
  EXPECT_TRUE(Has(resume.err, "was imported")) << resume.err;
  EXPECT_TRUE(Has(resume.err, "model.init_from")) << resume.err;
}

// Before there is a run: what a run would end with before its first step.
TEST(HuggingFace, CheckAndDryRunOpenWhatARunBeginsWith) {
  Job job;
  const std::string model = job.dir() / "model", imported = job.dir() / "imported";
  fs::copy(kFixture, model);
  ASSERT_EQ(Checkpoint({"import", kFixture, "--out", imported}).code, 0);
  const auto look = [&](const std::string& directory) {
    Strings check = job.Flags({From(directory)}), dry = check;
    check.insert(check.begin(), {"config", "check"});
    dry.emplace_back("--dry-run");
    return std::pair(Call(check), Call(dry));
  };
  const auto expect = [&](const std::string& directory, const std::string& why) {
    const auto [check, dry] = look(directory);
    for (const Outcome& outcome : {check, dry}) {
      EXPECT_EQ(outcome.code, why.empty() ? 0 : 5) << outcome.Text();
      EXPECT_EQ(outcome.err.empty(), why.empty()) << outcome.Text();
      EXPECT_TRUE(Has(outcome.err, why)) << outcome.err << "\nwant " << why;
    }
    EXPECT_EQ(check.err, dry.err);
  };
  expect(model, "");
  expect(imported, "");
  expect(job.dir() / "none", job.dir() / "none is not a directory");
  expect(job.dir() / std::string(300, 'x'), "x is not a directory");
  const Strings settings = {From(model), "train.steps=1", "checkpoint.every=1"};
  ASSERT_EQ(job.Train(settings).code, 0);
  const std::string weights = ReadFile(model + "/model.safetensors");
  fs::remove(model + "/model.safetensors");  // It may be read-only.
  job.dir().Write("model/model.safetensors", weights.substr(0, weights.size() / 2));
  expect(model, "");  // It would go on from its checkpoint.
  ASSERT_EQ(job.Train({From(model), "train.steps=2"}).code, 0);
  job.RunDir("another");
  expect(model, model + "/model.safetensors: ");
  EXPECT_EQ(job.Train(settings).err, look(model).first.err);
  fs::remove(model + "/model.safetensors");
  expect(model, model);
  fs::remove(imported + "/rank_0.safetensors");
  expect(imported, imported + "/rank_0.safetensors: No such file");
}

// The fixture with other keys in its config.json.
std::string Altered(const Job& job, const std::string& name, const Json& members) {
  const std::string directory = job.dir() / name;
  fs::create_directory(directory);
  fs::copy_file(std::string(kFixture) + "/model.safetensors", directory + "/model.safetensors");
  Json config = Json::parse(ReadFile(std::string(kFixture) + "/config.json"));
  for (const auto& [key, value] : members.items()) config[key] = value;
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

  // A run keeps those it began with, whatever the files say to a later build, and its export has
  // them.
  const Outcome other = job.Train({From(theirs), "train.steps=12", "checkpoint.every=12"});
  EXPECT_EQ(other.code, 0) << other.Text();
  const std::string kept = ReadFile(job.run_dir() + "/recipe.yaml");
  EXPECT_TRUE(Has(kept, "  attention_dropout: 0.0\n")) << kept;
  EXPECT_EQ(job.Train({From(theirs), "train.steps=14", "model.attention_dropout=0.25"}).code, 2);
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

Outcome Generate(const Strings& arguments) {
  Strings all = {"generate"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return Call(all);
}

// As the model came, in what its config.json says, through a run of a run; or as one says.
TEST(HuggingFace, AnExportKeepsTheDTypeOfTheModel) {
  Job job;
  const std::string model = job.dir() / "model";
  fs::copy(kFixture, model);
  Json config = Json::parse(ReadFile(model + "/config.json"));
  const std::string first = job.RunDir("first");
  const auto exported = [&](const Strings& more) {
    const std::string out = job.dir() / "out";
    Strings arguments = {"export", job.run_dir(), "--out", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Checkpoint(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    const std::string dtype = Json::parse(ReadFile(out + "/config.json"))["torch_dtype"];
    fs::remove_all(out);
    return dtype + (Has(outcome.out, ", as they came,") ? " kept" : "");
  };
  ASSERT_EQ(job.Train({From(model), "train.steps=1"}).code, 0);
  config["dtype"] = "bfloat16";
  job.dir().Write("model/config.json", config.dump());
  EXPECT_EQ(exported({}), "bfloat16 kept");
  EXPECT_EQ(exported({"--dtype", "fp32"}), "float32");
  config.erase("dtype");
  config["torch_dtype"] = "float16";
  job.dir().Write("model/config.json", config.dump());
  job.RunDir("second");
  ASSERT_EQ(job.Train({From(first), "train.steps=1"}).code, 0);
  EXPECT_EQ(exported({}), "float16 kept");
  fs::remove_all(model);
  EXPECT_EQ(exported({}), "float32");
}

TEST(HuggingFace, ANameOfTheHubSaysHowToDownload) {
  Job job;
  const Outcome hub = job.Train({From("meta-llama/Llama-3.2-1B")});
  EXPECT_EQ(hub.code, 5) << hub.Text();
  EXPECT_TRUE(Has(hub.err, "model.init_from: meta-llama/Llama-3.2-1B is not a directory; "))
      << hub.err;
  EXPECT_TRUE(Has(hub.err,
                  "`hf download meta-llama/Llama-3.2-1B --local-dir DIR`, then "
                  "model.init_from: DIR"))
      << hub.err;
  for (const std::string path : {"./a/b", "/a/b", "a/b/c", "tests/none"}) {
    EXPECT_FALSE(Has(job.Train({From(path)}).err, "hf download")) << path;
  }
}

// The model has 64 positions.
TEST(HuggingFace, TextGoesOnBehindTheLastPosition) {
  const Strings flags = {"--checkpoint", kFixture,       "--prompt-ids",  "1,2,3", "--max-tokens",
                         "80",           "--ignore-eot", "--temperature", "0"};
  Strings json = flags;
  json.emplace_back("--json");
  const Outcome outcome = Generate(json);
  EXPECT_EQ(outcome.code, 0) << outcome.Text();
  const Json text = Json::parse(outcome.out);
  EXPECT_EQ(text["tokens"].size(), 80u);
  EXPECT_EQ(text["end"], "length");
  EXPECT_TRUE(Has(outcome.err, "the model has 64 positions: ")) << outcome.err;
  // A token behind is the one that the last 64 before it give, as a prompt.
  const auto id = [&](size_t at) {
    return at < 3 ? static_cast<int>(at) + 1 : text["tokens"][at - 3].get<int>();
  };
  std::string last;
  for (size_t at = 70 - 64; at < 70; ++at)
    last += (last.empty() ? "" : ",") + std::to_string(id(at));
  const Outcome next = Generate({"--checkpoint", kFixture, "--prompt-ids", last, "--max-tokens",
                                 "1", "--ignore-eot", "--temperature", "0", "--json"});
  EXPECT_EQ(Json::parse(next.out)["tokens"][0], id(70));
  EXPECT_EQ(next.err, "");
}

TEST(HuggingFace, AnExportGeneratesAsTheRunDoes) {
  Job job;
  const std::string text = job.dir().Write("text.txt", std::string(3000, 'a') + "\n");
  const Strings data = {"data.train={source: text, paths: [" + text + "]}", "data.valid=null",
                        "model.vocab_size=257", "train.steps=3", "checkpoint.every=3"};
  ASSERT_EQ(job.Train(data).code, 0);
  const std::string out = job.dir() / "out";
  const Outcome exported = Checkpoint({"export", job.run_dir(), "--out", out});
  ASSERT_EQ(exported.code, 0) << exported.Text();
  EXPECT_EQ(exported.err, "");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_TRUE(Exists(out + "/" + file)) << file;
  }
  const auto tokens = [&](const std::string& directory, const Strings& more) {
    Strings arguments = {"--checkpoint",  directory, "--json", "--max-tokens", "5",
                         "--temperature", "1000"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome generated = Generate(arguments);
    EXPECT_EQ(generated.code, 0) << generated.Text();
    return Json::parse(generated.out);
  };
  const Json ours = tokens(job.run_dir(), {"--prompt", "ab"}),
             theirs = tokens(out, {"--prompt", "ab"});
  EXPECT_EQ(theirs["prompt_tokens"], Json({97, 98}));
  EXPECT_EQ(theirs["tokens"], ours["tokens"]);
  EXPECT_EQ(theirs["text"], ours["text"]);
  EXPECT_EQ(tokens(out, {"--prompt-ids", "97,98"})["tokens"], ours["tokens"]);

  // The files say which tokens end a text: here whatever comes third.
  const Json third = ours["tokens"][2];
  std::ofstream(out + "/generation_config.json") << Json({{"eos_token_id", {third}}}).dump();
  const Json ended = tokens(out, {"--prompt", "ab"});
  EXPECT_EQ(ended["end"], "end_of_text");
  EXPECT_LE(ended["tokens"].size(), 2u);
  EXPECT_EQ(tokens(out, {"--prompt", "ab", "--ignore-eot"})["tokens"], ours["tokens"]);

  // A recipe that ends documents by a token of its own, and one whose tokenizer is gone.
  job.RunDir("ends");
  Strings ends = data;
  ends[0] = "data.train={source: text, paths: [" + text + "], eot: 256}";
  ASSERT_EQ(job.Train(ends).code, 0);
  fs::remove_all(out);
  ASSERT_EQ(Checkpoint({"export", job.run_dir(), "--out", out}).code, 0);
  EXPECT_EQ(Json::parse(ReadFile(out + "/config.json"))["eos_token_id"], 256);
  EXPECT_EQ(Json::parse(ReadFile(out + "/generation_config.json"))["eos_token_id"], 256);
}

TEST(HuggingFace, ATokenizerThatIsGoneIsSaid) {
  Job job;
  const std::string text = job.dir().Write("text.txt", std::string(3000, 'a') + "\n");
  const std::string tokenizer = job.dir() / "gpt2.json";
  fs::copy_file("tests/fixtures/tokenizers/gpt2.json", tokenizer);
  const Outcome run =
      job.Train({"data.train={source: text, paths: [" + text + "], tokenizer: " + tokenizer + "}",
                 "data.valid=null", "data.cache=" + (job.dir() / "cache"), "model.vocab_size=1001",
                 "train.steps=3", "checkpoint.every=3"});
  ASSERT_EQ(run.code, 0) << run.Text();
  fs::remove(tokenizer);
  const std::string out = job.dir() / "out";
  const Outcome exported = Checkpoint({"export", job.run_dir(), "--out", out});
  EXPECT_EQ(exported.code, 0) << exported.Text();
  EXPECT_TRUE(Has(exported.err, "warning: no tokenizer files: tokenizer: " + tokenizer +
                                    ": No such file or directory"))
      << exported.err;
  EXPECT_TRUE(Has(exported.err, "--tokenizer names one")) << exported.err;
  EXPECT_TRUE(Exists(out + "/model.safetensors"));
  EXPECT_FALSE(Exists(out + "/tokenizer.json"));
  const std::string named = job.dir() / "named";
  const Outcome with = Checkpoint({"export", job.run_dir(), "--out", named, "--tokenizer",
                                   "tests/fixtures/tokenizers/gpt2.json"});
  EXPECT_EQ(with.code, 0) << with.Text();
  EXPECT_EQ(with.err, "");
  EXPECT_EQ(ReadFile(named + "/tokenizer.json"), ReadFile("tests/fixtures/tokenizers/gpt2.json"));
  EXPECT_EQ(Json::parse(ReadFile(named + "/config.json"))["eos_token_id"], 1000);
  EXPECT_EQ(
      Checkpoint({"export", job.run_dir(), "--out", job.dir() / "no", "--tokenizer", tokenizer})
          .code,
      4);
  EXPECT_EQ(Generate({"--checkpoint", job.run_dir(), "--prompt", "a"}).code, 4);
  const Outcome ids =
      Generate({"--checkpoint", job.run_dir(), "--prompt-ids", "5", "--max-tokens", "2"});
  EXPECT_EQ(ids.code, 0) << ids.Text();
  EXPECT_TRUE(Has(ids.out, "<5><")) << ids.out;
}

TEST(HuggingFace, GeneratesEveryIdOfTheModelFromIds) {
  const Strings base = {"--checkpoint", kFixture,        "--json", "--max-tokens",
                        "60",           "--temperature", "1000"};
  const auto with = [&](const Strings& more) {
    Strings all = base;
    all.insert(all.end(), more.begin(), more.end());
    return Generate(all);
  };
  const Outcome alone = with({"--prompt-ids", "1, 508"});
  ASSERT_EQ(alone.code, 0) << alone.Text();
  const Json json = Json::parse(alone.out);
  EXPECT_EQ(json["prompt_tokens"], Json({1, 508}));
  EXPECT_EQ(json["prompt"], "<1><508>");
  int64_t most = 0;
  std::string text;
  for (const Json& id : json["tokens"]) {
    most = std::max(most, id.get<int64_t>());
    text += "<" + id.dump() + ">";
  }
  EXPECT_GT(most, 256);
  EXPECT_EQ(json["text"], text);
  // Only a tokenizer's own ids come out, whatever may be in a prompt.
  for (const Strings& how :
       {Strings{"1000"}, Strings{"0"}, Strings{"1000", "--top-k", "400", "--samples", "2"},
        Strings{"1000", "--top-p", "0.999"}}) {
    Strings all = {"--checkpoint", kFixture, "--json",      "--max-tokens", "60",
                   "--prompt-ids", "97,300", "--tokenizer", "bytes",        "--temperature"};
    all.insert(all.end(), how.begin(), how.end());
    const Outcome bytes = Generate(all);
    ASSERT_EQ(bytes.code, 0) << bytes.Text();
    std::istringstream lines(bytes.out);
    for (std::string line; std::getline(lines, line);) {
      const Json of = Json::parse(line);
      EXPECT_EQ(of["prompt"], "a<300>");
      ASSERT_EQ(of["tokens"].size(), 60u) << line;
      for (const Json& id : of["tokens"]) EXPECT_LT(id.get<int64_t>(), 256) << line;
    }
  }
  for (const char* wrong : {"509", "-1", "x", "", "1,,2", "1 2", "99999999999999999999"}) {
    const Outcome outcome = with({"--prompt-ids", wrong});
    EXPECT_EQ(outcome.code, 2) << wrong << outcome.Text();
  }
  EXPECT_TRUE(Has(with({"--prompt-ids", "509"}).err, "want ids from 0 to 508"));
  EXPECT_EQ(with({"--prompt", "a"}).code, 2);
}

TEST(HuggingFace, NothingIsGeneratedFromWeightsThatAreNotFinite) {
  Job job;
  const std::string theirs = Altered(job, "theirs", Json::object());
  const std::string path = theirs + "/model.safetensors";
  std::string bytes = ReadFile(path);
  const uint32_t nan = 0x7fc00000;
  std::copy_n(reinterpret_cast<const char*>(&nan), 4, bytes.end() - 8);
  std::ofstream(path, std::ios::binary) << bytes;
  const Outcome outcome = Generate({"--checkpoint", theirs, "--prompt-ids", "1"});
  EXPECT_EQ(outcome.code, 5) << outcome.Text();
  EXPECT_TRUE(Has(outcome.err, theirs + ": transformer.")) << outcome.err;
  EXPECT_TRUE(Has(outcome.err, " is nan")) << outcome.err;
}

}  // namespace
}  // namespace fsdp::e2e
