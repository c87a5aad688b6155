// Checkpoints of version 1 are for ever: this build reads them, goes on from them and gives of them
// what the build gave that wrote them (tests/fixtures/checkpoint_v1).
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/golden.h"
#include "trainer/checkpoint/safetensors.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

struct Fixture {
  const char* name;
  int world;  // Ranks of the run that wrote it.
};
void PrintTo(const Fixture& fixture, std::ostream* out) { *out << fixture.name; }

// A copy of a fixture's run in a directory of its own, where commands are called.
class CheckpointV1 : public ::testing::TestWithParam<Fixture> {
 protected:
  void SetUp() override {
    const std::string fixture = std::string("tests/fixtures/checkpoint_v1/") + GetParam().name;
    fs::copy(fixture, directory_.path(), fs::copy_options::recursive);
    fs::copy("tests/fixtures/llama/mistral_dynamic", directory_ / "base");
    ASSERT_NE(ReadFile(step_ + "/manifest.json").find("\"version\": 1,"), std::string::npos);
  }

  Outcome Command(const Strings& arguments) const {
    return Call(arguments, kGoldenEnvironment, directory_.path());
  }
  Outcome Train(int world, const Strings& settings) const {
    Strings arguments;
    if (world > 1) arguments = {"launch", "--nproc-per-node", std::to_string(world), "--"};
    arguments.insert(arguments.end(), {"--config", "recipe.yaml"});
    for (const std::string& setting : settings) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    return Command(arguments);
  }
  // Against the section `what` of this fixture.
  void ExpectGolden(const std::string& what, const Quantities& quantities) const {
    const std::string differences = GoldenFile("tests/fixtures/checkpoint_v1/golden.txt")
                                        .Differences(std::string(GetParam().name) + "_" + what,
                                                     "see checkpoint_v1_test.cc", quantities);
    EXPECT_TRUE(differences.empty()) << differences;
  }

  const TempDir directory_;
  const std::string step_ = directory_ / "run/checkpoints/step_2";
};

TEST_P(CheckpointV1, IsWholeAndReadsAsWritten) {
  const Outcome verify = Command({"checkpoint", "verify", "run"});
  EXPECT_EQ(verify.code, 0) << verify.Text();
  ExpectGolden("stored", TensorsOf(step_));
}

TEST_P(CheckpointV1, GoesOnAsItBegan) {
  const Outcome resumed = Train(GetParam().world, {});
  ASSERT_EQ(resumed.code, 0) << resumed.Text();
  const std::vector<Json> resumes = OfKind(ReadMetrics(directory_ / "run"), "resume");
  ASSERT_EQ(resumes.size(), 1u) << resumed.Text();
  EXPECT_EQ(resumes[0]["step"], 2);
  ExpectGolden("resumed", QuantitiesOf(directory_ / "run"));
}

TEST_P(CheckpointV1, GoesOnAtAnotherWorldAndStrategy) {
  fs::copy(directory_ / "run", directory_ / "moved", fs::copy_options::recursive);
  const Outcome moved =
      Train(3, {"run.dir=moved", "fsdp={sharding_strategy: no_shard, auto_wrap: {policy: none}}"});
  ASSERT_EQ(moved.code, 0) << moved.Text();
  EXPECT_EQ(OfKind(ReadMetrics(directory_ / "moved"), "resume").size(), 1u) << moved.Text();
  ExpectGolden("moved", QuantitiesOf(directory_ / "moved"));
}

TEST_P(CheckpointV1, IsReshardedAsItIs) {
  for (const int world : {1, 3}) {
    const std::string out = directory_ / ("world_" + std::to_string(world));
    const Outcome reshard = Command(
        {"checkpoint", "reshard", "run", "--world-size", std::to_string(world), "--out", out});
    ASSERT_EQ(reshard.code, 0) << reshard.Text();
    EXPECT_EQ(TensorsOf(out), TensorsOf(step_)) << "world " << world;
  }
}

TEST_P(CheckpointV1, IsExported) {
  Quantities quantities;
  const auto export_with = [&](const std::string& name, const Strings& flags) {
    Strings arguments = {"checkpoint", "export", "run", "--out", name};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = Command(arguments);
    ASSERT_EQ(outcome.code, 0) << outcome.Text();
    quantities.emplace_back(
        name + " config.json data",
        GoldenHash(Json::parse(ReadFile(directory_ / name + "/config.json")).dump()));
    const SafetensorsReader reader(directory_ / name + "/model.safetensors");
    for (const std::string& tensor : reader.Names()) {
      std::string bytes(reader.Info(tensor).bytes(), '\0');
      reader.ReadBytes(tensor, 0, std::as_writable_bytes(std::span(bytes)));
      quantities.emplace_back(name + " " + tensor + " data", GoldenHash(bytes));
    }
  };
  export_with("last", {});
  export_with("bf16", {"--dtype", "bf16"});
  if (GetParam().name == std::string("gpt2_ema")) export_with("averaged", {"--ema"});
  ExpectGolden("exported", quantities);
}

// Another run takes its weights.
TEST_P(CheckpointV1, IsTrainedFrom) {
  const Outcome tuned =
      Train(2, {"run.dir=tuned", "model={init_from: run/checkpoints/step_2}", "train.ema=null"});
  ASSERT_EQ(tuned.code, 0) << tuned.Text();
  ExpectGolden("tuned", QuantitiesOf(directory_ / "tuned"));
}

TEST_P(CheckpointV1, IsGeneratedFrom) {
  const Outcome generated = Command({"generate", "--checkpoint", "run", "--prompt-ids",
                                     "108,105,110", "--max-tokens", "8", "--seed", "3", "--json"});
  ASSERT_EQ(generated.code, 0) << generated.Text();
  ExpectGolden("generated", {{"tokens sampled", Json::parse(generated.out).at("tokens").dump()}});
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointV1,
                         ::testing::Values(Fixture{"gpt2_ema", 2}, Fixture{"llama_lora", 1}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp::e2e
