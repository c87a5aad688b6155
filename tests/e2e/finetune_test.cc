// Going on from weights that are there, as a user does it with the real binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const char kWeights[] = "tests/fixtures/gpt2/one_head";  // Without a tokenizer.
const char kTokenizer[] = "tests/fixtures/tokenizers/gpt2.json";

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// In place of the recipe's shape that of the weights.
std::string From(const std::string& directory) {
  return "model={hidden_size: null, num_hidden_layers: null, num_attention_heads: null, "
         "vocab_size: null, max_position_embeddings: null, init_from: " +
         directory + "}";
}

class FinetuneTest : public ::testing::Test {
 protected:
  FinetuneTest() {
    std::string words;
    for (int i = 0; i < 1000; ++i) words += "word " + std::to_string(i * i) + ". ";
    text_ = job_.dir().Write("text.txt", words);
  }

  Strings Data(const std::string& tokenizer) const {
    return {"data.train={source: text, paths: [" + text_ + "]" +
                (tokenizer.empty() ? "" : ", tokenizer: " + tokenizer) + "}",
            "data.valid=null", "data.cache=" + (job_.dir() / "cache")};
  }
  Outcome Train(const std::string& name, Strings settings, const std::string& tokenizer) {
    job_.RunDir(name);
    const Strings data = Data(tokenizer);
    settings.insert(settings.end(), data.begin(), data.end());
    settings.insert(settings.end(), {"checkpoint.every=2"});
    return job_.Train(settings);
  }
  std::string LastLoss() const {
    return OfKind(ReadMetrics(job_.run_dir()), "step").back()["loss"].dump();
  }

  Job job_;
  std::string text_;
};

TEST_F(FinetuneTest, ARunBeginsFromAnothersLatestCheckpointWithItsTokenizer) {
  const Outcome first = Train(
      "first", {"model.vocab_size=null", "model.vocab_multiple=16", "train.steps=4"}, kTokenizer);
  ASSERT_EQ(first.code, 0) << first.Text();
  EXPECT_TRUE(Has(first.out, std::string("vocabulary: 1008 tokens, the 1001 of tokenizer ") +
                                 kTokenizer + " rounded up to a multiple of 16\n"))
      << first.out;
  const std::string run = job_.run_dir(), checkpoint = run + "/checkpoints/step_4";

  const Outcome tuned = Train("tuned", {From(run), "train.steps=2"}, "");
  ASSERT_EQ(tuned.code, 0) << tuned.Text();
  EXPECT_TRUE(
      Has(tuned.out, "model.init_from: " + checkpoint + ", the latest checkpoint of " + run));
  EXPECT_TRUE(
      Has(tuned.out, std::string("tokenizer: ") + kTokenizer + ", that of model.init_from\n"));
  const std::string recorded = ReadFile(job_.run_dir() + "/recipe.yaml");
  for (const std::string& line :
       {"  init_from: " + checkpoint + "\n", std::string("  hidden_size: 16\n"),
        std::string("  vocab_size: 1008\n")}) {
    EXPECT_TRUE(Has(recorded, line)) << line << recorded;
  }
  const std::string loss = LastLoss();
  ASSERT_EQ(Train("same", {From(checkpoint), "train.steps=2"}, kTokenizer).code, 0);
  EXPECT_EQ(LastLoss(), loss);

  // Its own checkpoint says what it was made of, whatever has become of that.
  fs::remove_all(run);
  const Outcome on = Train("tuned", {From(run), "train.steps=3"}, "");
  EXPECT_EQ(on.code, 0) << on.Text();
  EXPECT_TRUE(Has(on.out, "resumed from ")) << on.out;
  const Outcome other = Train("tuned", {From(run), "model.hidden_size=32", "train.steps=4"}, "");
  EXPECT_EQ(other.code, 2) << other.Text();
  EXPECT_TRUE(
      Has(other.err, "the recipe says 32, " + job_.run_dir() + "/checkpoints/step_3 says 16"))
      << other.err;
}

TEST_F(FinetuneTest, TextNeedsATokenizerWhereNoneIsBesideTheWeights) {
  const Outcome refused = Train("refused", {From(kWeights)}, "");
  EXPECT_EQ(refused.code, 2) << refused.Text();
  EXPECT_TRUE(Has(refused.err, std::string("data.train.tokenizer: required: ") + kWeights +
                                   " has no tokenizer beside its weights."))
      << refused.err;
  EXPECT_FALSE(Exists(job_.run_dir()));
  EXPECT_EQ(Train("bytes", {From(kWeights), "train.steps=1"}, "bytes").code, 0);
}

// Where the tokenizer is on another machine; a run wants it.
TEST_F(FinetuneTest, ATokenizerThatIsNotThereLeavesTheFamilysVocabulary) {
  Strings settings = Data("elsewhere/tokenizer.json");
  settings.insert(settings.end(), {"model.vocab_size=null", "model.vocab_multiple=64"});
  const Strings flags = job_.Flags(settings);
  const auto with = [&](Strings command) {
    command.insert(command.end(), flags.begin(), flags.end());
    return Call(command);
  };
  const std::string why = "vocabulary: 50304 tokens, gpt2's default: ";
  const Outcome print = with({"config", "print"}), plan = with({"plan", "--world-size", "2"}),
                json = with({"plan", "--json", "--world-size", "2"});
  EXPECT_TRUE(Has(print.out, "  vocab_size: 50304\n")) << print.Text();
  EXPECT_EQ(print.err.rfind("note: " + why, 0), 0u) << print.err;
  EXPECT_EQ(plan.code, 0) << plan.Text();
  EXPECT_TRUE(Has(plan.out, "\n" + why)) << plan.out;
  EXPECT_EQ(json.err.rfind(why, 0), 0u) << json.err;
  EXPECT_NO_THROW(Json::parse(json.out));
  const Outcome run = job_.Train(settings);
  EXPECT_EQ(run.code, 4) << run.Text();
}

TEST_F(FinetuneTest, AdaptersAreExportedForPeft) {
  const auto from = [&](const std::string& targets) {
    const std::string model = From(fs::absolute(kWeights));
    return model.substr(0, model.size() - 1) + ", lora: {rank: 2, targets: [" + targets + "]}}";
  };
  const Outcome refused = Train("refused", {from("q_proj")}, "bytes");
  EXPECT_EQ(refused.code, 2) << refused.Text();
  EXPECT_TRUE(
      Has(refused.err,
          "`q_proj` matches no weight of a linear layer in a block; a name is transformer.h.0"
          ".mlp.c_proj.weight, and c_proj means it in every layer"))
      << refused.err;
  EXPECT_TRUE(Has(Train("refused", {from("all-linear")}, "bytes").err, "; `*` is all of them"));
  const Outcome tuned = Train("tuned", {from("c_attn"), "train.steps=2"}, "bytes");
  ASSERT_EQ(tuned.code, 0) << tuned.Text();
  const auto exported = [&](const Strings& more) {
    Strings all = {"checkpoint", "export", job_.run_dir(), "--adapters"};
    all.insert(all.end(), more.begin(), more.end());
    return Call(all);
  };
  const std::string out = job_.dir() / "adapters";
  const Outcome done = exported({"--out", out, "--dtype", "bf16"});
  EXPECT_EQ(done.code, 0) << done.Text();
  EXPECT_EQ(done.err, "");
  EXPECT_TRUE(Has(done.out, "in bf16, adapters of 1 weight\n")) << done.out;
  const Json config = Json::parse(ReadFile(out + "/adapter_config.json"));
  EXPECT_EQ(config["target_modules"], Json({"c_attn"}));
  EXPECT_EQ(config["fan_in_fan_out"], true);  // GPT-2's weights are [in, out].
  EXPECT_EQ(config["lora_alpha"].dump(), "16");
  EXPECT_EQ(config["base_model_name_or_path"], fs::absolute(kWeights).string());
  EXPECT_EQ(exported({"--out", out}).code, 5);  // It is there.
  for (const Strings& other : {Strings{"--tokenizer", "bytes"}, {"--max-shard-size", "1MB"}}) {
    Strings all = {"--out", job_.dir() / "other"};
    all.insert(all.end(), other.begin(), other.end());
    EXPECT_EQ(exported(all).code, 2);
  }
}

// A base in four bits: the run goes on, is evaluated and exported from weights that its checkpoints
// name and do not hold.
TEST_F(FinetuneTest, ABaseInFourBitsIsNamedByCheckpoints) {
  const std::string base = job_.dir() / "base";
  fs::copy(kWeights, base);
  const auto from = [&](const std::string& lora) {
    const std::string model = From(base);
    return model.substr(0, model.size() - 1) + ", lora: {rank: 2, " + lora + "}}";
  };
  const std::string nf4 = from("base: nf4");
  const Outcome whole = Train("whole", {nf4, "train.steps=4"}, "bytes");
  ASSERT_EQ(whole.code, 0) << whole.Text();
  EXPECT_TRUE(Has(whole.out, "frozen weights are kept as nf4, ")) << whole.out;
  const std::string run = job_.run_dir(), checkpoint = run + "/checkpoints/step_4";
  const Json manifest = Json::parse(ReadFile(checkpoint + "/manifest.json"));
  EXPECT_EQ(manifest["base"]["files"], base);
  EXPECT_EQ(manifest["units"].back()["code"], "nf4_nested");
  for (const Json& slice : manifest["files"][0]["slices"]) {
    EXPECT_FALSE(Has(slice.value("unit", ""), "frozen")) << slice.dump();
  }

  const std::string loss = LastLoss();
  ASSERT_EQ(Train("parts", {nf4, "train.steps=2"}, "bytes").code, 0);
  const Outcome on = Train("parts", {nf4, "train.steps=4"}, "bytes");
  ASSERT_EQ(on.code, 0) << on.Text();
  EXPECT_EQ(LastLoss(), loss);

  // Merged, it is the same model.
  const std::string merged = job_.dir() / "merged";
  ASSERT_EQ(Call({"checkpoint", "export", checkpoint, "--out", merged}).code, 0);
  const auto loss_of = [&](Strings command) {
    command.insert(command.begin(), {"eval", "--json", "--checkpoint"});
    command.insert(command.end(), {"--set", "data.valid={fraction: 0.2}"});
    const Outcome told = Call(command);
    EXPECT_EQ(told.code, 0) << told.Text();
    return Json::parse(told.out)["sets"][0]["loss"].get<double>();
  };
  EXPECT_NEAR(loss_of({checkpoint}),
              loss_of({merged, "--config", run + "/recipe.yaml", "--set", "model.lora=null"}),
              1e-6);

  // They may lie elsewhere by now.
  const std::string moved = job_.dir() / "moved", at_moved = From(moved);
  fs::copy(base, moved);
  const Outcome elsewhere = Train(
      "parts",
      {at_moved.substr(0, at_moved.size() - 1) + ", lora: {rank: 2, base: nf4}}", "train.steps=5"},
      "bytes");
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.Text();

  // One bit of a norm, which has no code, is another now.
  const std::string file = base + "/model.safetensors";
  const std::string before = ReadFile(file);
  uint64_t header = 0;
  std::memcpy(&header, before.data(), sizeof(header));
  const Json tensors = Json::parse(before.substr(sizeof(header), header));
  std::string norm = before;
  norm[sizeof(header) + header +
       tensors["transformer.ln_f.weight"]["data_offsets"][0].get<size_t>()] ^= 1;
  job_.dir().Write("base/model.safetensors", norm);
  const Outcome bit = Train("parts", {nf4, "train.steps=6"}, "bytes");
  EXPECT_EQ(bit.code, 5) << bit.Text();
  EXPECT_THAT(bit.err, HasSubstr("those of " + base + " have "));
  job_.dir().Write("base/model.safetensors", before);

  // Most weights are.
  const Outcome changed = Train("parts", {nf4, "train.steps=6", "model.lora.base=int8"}, "bytes");
  EXPECT_EQ(changed.code, 2) << changed.Text();
  std::string weights = ReadFile(base + "/model.safetensors");
  for (size_t sign = weights.size() - 1; sign > 16384; sign -= 404) {
    weights[sign] = static_cast<char>(weights[sign] ^ 0x80);
  }
  job_.dir().Write("base/model.safetensors", weights);
  for (const Outcome& refused :
       {Train("parts", {nf4, "train.steps=6"}, "bytes"),
        Call({"checkpoint", "export", checkpoint, "--out", job_.dir() / "no"}),
        Call({"generate", "--checkpoint", checkpoint, "--prompt", "x"})}) {
    EXPECT_EQ(refused.code, 5) << refused.Text();
    EXPECT_THAT(refused.err, HasSubstr(": its run's frozen weights are those of "));
    EXPECT_THAT(refused.err, HasSubstr("those of " + base + " have "));
  }
  fs::remove_all(base);
  EXPECT_THAT(Call({"checkpoint", "export", checkpoint, "--out", job_.dir() / "no"}).err,
              HasSubstr(": its frozen weights are those of " + base +
                        ", so these, or a link to them, must be there: "));
}

// A base in bitsandbytes' form is trained over as it is: the run has the bits of the run that it
// was exported from.
TEST_F(FinetuneTest, ABaseInFourBitsIsExportedAsItIs) {
  const std::string llama =
      "model={family: llama, hidden_size: 64, intermediate_size: 130, num_hidden_layers: 2, "
      "num_attention_heads: 4, vocab_size: 256, max_position_embeddings: 64}";
  ASSERT_EQ(Train("llama", {llama, "train.steps=2"}, "bytes").code, 0);
  const auto exported = [&](const std::string& run, const std::string& name, Strings more) {
    more.insert(more.begin(), {"checkpoint", "export", run, "--out", job_.dir() / name});
    return Call(more);
  };
  ASSERT_EQ(exported(job_.run_dir(), "plain", {"--dtype", "bf16"}).code, 0);
  const auto over = [&](const std::string& base, const std::string& lora) {
    const std::string model = From(job_.dir() / base);
    return Strings{model.substr(0, model.size() - 1) + ", family: null, lora: {rank: 2, base: nf4" +
                       lora + "}}",
                   "train.steps=2"};
  };
  ASSERT_EQ(Train("tuned", over("plain", ""), "bytes").code, 0);
  const std::string tuned = job_.run_dir(), loss = LastLoss();
  const Outcome coded = exported(tuned, "coded", {"--base", "nf4", "--dtype", "fp32"});
  ASSERT_EQ(coded.code, 0) << coded.Text();
  EXPECT_THAT(coded.out, HasSubstr("coded/adapters: "));
  EXPECT_THAT(ReadFile(job_.dir() / "coded/config.json"),
              HasSubstr("\"quant_method\": \"bitsandbytes\""));
  EXPECT_THAT(ReadFile(job_.dir() / "coded/adapters/adapter_config.json"),
              HasSubstr(job_.dir() / "coded\""));
  EXPECT_EQ(coded.err, "");
  EXPECT_THAT(exported(tuned, "adapters", {"--adapters"}).err,
              HasSubstr("the adapters have learnt over a base in nf4"));
  const Outcome again = Train("again", over("coded", ""), "bytes");
  ASSERT_EQ(again.code, 0) << again.Text();
  EXPECT_EQ(LastLoss(), loss);
  const Outcome other = Train("other", over("coded", ", base_scales: fp32"), "bytes");
  EXPECT_EQ(other.code, 2) << other.Text();
  EXPECT_THAT(other.err, HasSubstr("which is not encoded again: set model.lora.base: nf4 and "
                                   "base_scales: 8bit"));

  // Into the weights that were encoded. A run that holds nothing out has no loss to show.
  const Outcome merged = exported(tuned, "merged", {"--merge-into", job_.dir() / "plain"});
  EXPECT_EQ(merged.code, 0) << merged.Text();
  EXPECT_EQ(merged.out.find("the loss of set"), std::string::npos);
  job_.RunDir("held_out");
  Strings settings = over("plain", "");
  for (const std::string& setting : Data("bytes")) settings.push_back(setting);
  settings.insert(settings.end(), {"data.valid={fraction: 0.2}", "checkpoint.every=2"});
  ASSERT_EQ(job_.Train(settings).code, 0);
  const Outcome compared =
      exported(job_.run_dir(), "compared", {"--merge-into", job_.dir() / "plain"});
  EXPECT_THAT(compared.out, HasSubstr("merged, the loss of set 1 is 0.0")) << compared.Text();
  EXPECT_THAT(exported(tuned, "none", {"--adapters", "--merge-into", job_.dir() / "plain"}).err,
              HasSubstr("--merge-into: merges adapters, and --adapters leaves them apart"));
  EXPECT_NE(ReadFile(job_.dir() / "merged/model.safetensors"),
            ReadFile(job_.dir() / "plain/model.safetensors"));
  EXPECT_THAT(exported(tuned, "none", {"--merge-into", tuned}).err,
              HasSubstr(" is the run itself"));
  EXPECT_THAT(exported(tuned, "none", {"--merge-into", kWeights}).err,
              HasSubstr("is a model of another shape"));
  EXPECT_THAT(exported(tuned, "none", {"--merge-into", job_.dir() / "no"}).err,
              HasSubstr("--merge-into: " + (job_.dir() / "no") + " is not a directory"));
  EXPECT_THAT(exported(job_.dir() / "llama", "none", {"--base", "nf4"}).err,
              HasSubstr("its run kept no weights in four or eight bits"));
}

TEST_F(FinetuneTest, ABaseInFourBitsIsOfWhatIsFrozen) {
  const auto told = [&](const std::string& lora) {
    const std::string model = From(fs::absolute(kWeights));
    const Outcome refused =
        Train("refused", {model.substr(0, model.size() - 1) + ", lora: " + lora + "}"}, "bytes");
    EXPECT_EQ(refused.code, 2) << refused.Text();
    return refused.err;
  };
  EXPECT_THAT(told("{rank: 0}"), HasSubstr("model.lora.rank: 0 means no adapters"));
  EXPECT_THAT(told("{rank: 0, base: nf4}"),
              HasSubstr("model.lora.base: no weight of a linear layer in a block is frozen"));
  EXPECT_THAT(told("{rank: 0, base: nf4, full: [c_fc]}"),
              HasSubstr("model.lora.full: names what "));
  EXPECT_THAT(told("{base: nf4, base_exclude: [c_attn, wte]}"),
              HasSubstr("model.lora.base_exclude: `wte` matches no frozen weight of a linear "
                        "layer in a block: a name is transformer.h.0."));
  EXPECT_THAT(told("{base: nf4, base_exclude: ['*']}"),
              HasSubstr("base_exclude names every frozen weight of a linear layer"));
  EXPECT_THAT(told("{rank: 0, base: nf4, targets: [c_fc]}"),
              HasSubstr("model.lora.targets: names what gets adapters"));
  EXPECT_THAT(told("{base_exclude: [c_fc]}"),
              HasSubstr("model.lora.base_exclude: names what is not encoded"));
  EXPECT_THAT(told("{base: fp4}"), HasSubstr("want `none`, `nf4` or `int8`"));
}

}  // namespace
}  // namespace fsdp::e2e
