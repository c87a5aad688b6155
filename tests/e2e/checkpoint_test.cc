// `fsdp-train checkpoint` as a user calls it, on what real runs have saved.
#include "trainer/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/e2e/run_binary.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/comm/mesh.h"
#include "trainer/comm/store/memory_store.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

Outcome Checkpoint(const Strings& arguments) {
  Strings all = {"checkpoint"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return Call(all);
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A run of two ranks with checkpoints of steps 4, 8 and 10.
class CheckpointCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    const Outcome run = job_.Launch(2, {"checkpoint={every: 4, keep_last: 0}"});
    ASSERT_EQ(run.code, 0) << run.Text();
  }
  std::string Step(int step) const {
    return job_.run_dir() + "/checkpoints/step_" + std::to_string(step);
  }
  Job job_;
};

TEST_F(CheckpointCommand, LsListsThem) {
  fs::remove(Step(4) + "/rank_1.safetensors");
  for (const std::string& directory : {job_.run_dir(), job_.run_dir() + "/checkpoints"}) {
    const Outcome text = Checkpoint({"ls", directory});
    ASSERT_EQ(text.code, 0) << text.Text();
    EXPECT_EQ(text.err, "");
    for (const char* word : {"incomplete", "rank_1.safetensors: No such file", "complete", "latest",
                             "  ranks  ", "step_10"}) {
      EXPECT_TRUE(Has(text.out, word)) << word << "\n" << text.out;
    }
    const Outcome json = Checkpoint({"ls", directory, "--json"});
    ASSERT_EQ(json.code, 0) << json.Text();
    const Json list = Json::parse(json.out).at("checkpoints");
    ASSERT_EQ(list.size(), 3u) << json.out;
    const int steps[] = {4, 8, 10};
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(list[i]["step"], steps[i]);
      EXPECT_EQ(list[i]["path"], Step(steps[i]));
      EXPECT_EQ(list[i]["complete"], i > 0);
      EXPECT_EQ(list[i]["reason"].is_null(), i > 0);
      EXPECT_EQ(list[i]["latest"], i == 2);
      EXPECT_EQ(list[i]["world_size"], 2);
      EXPECT_EQ(list[i]["shard_size"], 2);
      EXPECT_GT(list[i]["bytes"], 1000);
      EXPECT_GE(list[i]["age_s"], 0);
    }
  }
  EXPECT_EQ(Checkpoint({"ls", job_.dir() / "nowhere"}).code, 5);
  fs::create_directory(job_.dir() / "empty");
  const Outcome none = Checkpoint({"ls", job_.dir() / "empty"});
  EXPECT_EQ(none.code, 0);
  EXPECT_TRUE(Has(none.out, "no checkpoints in ")) << none.out;
}

TEST_F(CheckpointCommand, VerifyNamesWhatIsDamaged) {
  for (const std::string& path : {job_.run_dir(), Step(10), Step(4)}) {
    const Outcome whole = Checkpoint({"verify", path});
    EXPECT_EQ(whole.code, 0) << whole.Text();
    EXPECT_TRUE(Has(whole.out, "whole: 2 files")) << whole.out;
  }
  const std::string file = Step(10) + "/rank_1.safetensors", bytes = ReadFile(file);
  std::string damaged = bytes;
  damaged[damaged.size() / 2] ^= 1;
  std::ofstream(file, std::ios::binary) << damaged;
  const Outcome outcome = Checkpoint({"verify", job_.run_dir()});
  EXPECT_EQ(outcome.code, 5) << outcome.Text();
  EXPECT_TRUE(Has(outcome.out, file + ": bytes 0 to ")) << outcome.out;
  EXPECT_TRUE(Has(outcome.out, "do not have their checksum: the file's header, master of "));
  EXPECT_TRUE(Has(outcome.err, "step_10: is damaged in 1 place")) << outcome.err;
  EXPECT_EQ(Checkpoint({"verify", Step(8)}).code, 0);
  std::ofstream(Step(8) + "/manifest.json", std::ios::app) << " ";
  const Outcome manifest = Checkpoint({"verify", Step(8)});
  EXPECT_EQ(manifest.code, 5);
  EXPECT_TRUE(Has(manifest.err, "manifest.json: is damaged")) << manifest.err;
}

// The directory of a run stands for every checkpoint in it, and for the one that `latest` names.
TEST_F(CheckpointCommand, VerifyOfARunReportsAll) {
  const auto verify = [&] { return Checkpoint({"verify", job_.run_dir()}); };
  const Outcome whole = verify();
  ASSERT_EQ(whole.code, 0) << whole.Text();
  for (const int step : {4, 8, 10}) {
    EXPECT_TRUE(Has(whole.out, Step(step) + ": whole: 2 files")) << whole.out;
  }
  EXPECT_TRUE(Has(whole.out, "latest: " + Step(10))) << whole.out;
  // An older one that is damaged, and one that is set aside, which is nobody's.
  const std::string file = Step(4) + "/rank_0.safetensors", bytes = ReadFile(file);
  std::ofstream(file, std::ios::app) << "x";
  fs::copy(Step(4), Step(9) + ".aside");
  fs::create_directory(Step(11) + ".tmp");
  const Outcome older = verify();
  EXPECT_EQ(older.code, 5) << older.Text();
  EXPECT_TRUE(Has(older.out, file + ": has ") && Has(older.out, Step(8) + ": whole")) << older.out;
  EXPECT_TRUE(Has(older.err, Step(4) + ": is damaged in 1 place")) << older.err;
  EXPECT_FALSE(Has(older.Text(), ".aside") || Has(older.Text(), ".tmp")) << older.Text();
  std::ofstream(file, std::ios::binary) << bytes;
  // A damaged `latest` is never green, whatever is wrong with it.
  const std::string latest = job_.run_dir() + "/checkpoints/latest";
  std::ofstream(latest) << "step_12";
  const Outcome missing = verify();
  EXPECT_EQ(missing.code, 5) << missing.Text();
  EXPECT_TRUE(Has(missing.err, "step_12/manifest.json: No such file")) << missing.err;
  EXPECT_TRUE(Has(missing.err, "which `latest` names, was moved or removed;")) << missing.err;
  EXPECT_TRUE(Has(missing.err, "(complete: 4, 8, 10)")) << missing.err;
  std::ofstream(latest) << "nonsense";
  EXPECT_TRUE(Has(verify().err, latest + ": is damaged: `nonsense`"));
  std::ofstream(latest) << "step_10";
  fs::remove(Step(10) + "/rank_0.safetensors");
  const Outcome newest = verify();
  EXPECT_EQ(newest.code, 5);
  EXPECT_TRUE(Has(newest.err, Step(10) + ": is damaged in 1 place")) << newest.err;
  EXPECT_TRUE(Has(newest.err, "which `latest` names, is not whole")) << newest.err;
}

// From a damaged newest checkpoint no run goes on, and the way out that it names works.
TEST_F(CheckpointCommand, ARunGoesOnFromAnOlderOneWhenToldTo) {
  fs::remove(Step(10) + "/rank_1.safetensors");
  const Strings more = {"train.steps=12", "checkpoint={every: 4, keep_last: 0}"};
  const auto with = [&](const Strings& settings) {
    Strings all = more;
    all.insert(all.end(), settings.begin(), settings.end());
    return job_.Launch(2, all);
  };
  const Outcome refused = with({});
  EXPECT_EQ(refused.code, 5) << refused.Text();
  EXPECT_TRUE(Has(refused.err, Step(10) + "/rank_1.safetensors: No such file")) << refused.err;
  EXPECT_TRUE(Has(refused.err, "set checkpoint.resume to its step (complete: 4, 8)"))
      << refused.err;
  EXPECT_FALSE(Has(refused.out, "resumed from")) << refused.out;
  const Outcome on = with({"checkpoint.resume=8"});
  ASSERT_EQ(on.code, 0) << on.Text();
  EXPECT_TRUE(Has(on.out, "resumed from " + Step(8) + ", step 8")) << on.out;
  EXPECT_TRUE(Has(on.Text(), "set aside") && Has(on.Text(), "step_10.aside")) << on.Text();
  EXPECT_TRUE(Exists(Step(10) + ".aside/rank_0.safetensors"));
  // The records of the steps that were left are kept, too.
  const std::string kept = job_.run_dir() + "/metrics.1.jsonl";
  EXPECT_TRUE(Has(on.Text(), "the records so far are also in " + kept)) << on.Text();
  EXPECT_TRUE(Has(ReadFile(kept), "{\"kind\": \"step\", \"step\": 10,")) << ReadFile(kept);
  EXPECT_EQ(Checkpoint({"verify", job_.run_dir()}).code, 0);
}

// The newest checkpoint again, each of its states in bf16; written for one rank.
void RoundNewest(const std::string& checkpoints, int step) {
  const std::string path = checkpoints + "/step_" + std::to_string(step);
  const Manifest manifest = ReadManifest(path);
  const Layout layout = Relayout(manifest.flat_parameters, /*shards=*/1);
  const ShardPlace place = PlaceOn(Mesh(/*rank=*/0, /*world_size=*/1, /*shard_size=*/1));
  std::vector<std::vector<std::byte>> buffers;
  std::vector<CheckpointState> states;
  for (const std::string& name : manifest.StateNames()) {
    CheckpointState& state = states.emplace_back();
    state.name = name;
    for (const FlatParameter& flat : layout.flat_parameters) {
      const Shape shape{FlatHasState(flat, name) ? flat.size : 0};
      auto& buffer = buffers.emplace_back(static_cast<size_t>(2 * shape.NumElements()));
      state.shards.emplace_back(buffer.data(), DType::kBFloat16, shape);
    }
  }
  const LoadedCheckpoint loaded = LoadCheckpoint(path, layout, place, states);
  EXPECT_EQ(loaded.converted, "master, m and v from fp32 to bf16, rounded to nearest");
  MemoryStore store(/*timeout_s=*/60);
  SaveCheckpoint(checkpoints, layout, place, states, loaded.meta, store, /*attempt=*/0,
                 /*keep_last=*/0);
}

TEST_F(CheckpointCommand, ARunThatGoesOnInAnotherPrecisionSaysSoOnce) {
  const auto on = [&](int steps) {
    return job_.Launch(
        2, {"train.steps=" + std::to_string(steps), "checkpoint={every: 4, keep_last: 0}"});
  };
  const std::string same = " is of another precision";
  RoundNewest(job_.run_dir() + "/checkpoints", 10);
  const Outcome widened = on(12);
  ASSERT_EQ(widened.code, 0) << widened.Text();
  const std::string line = Step(10) + same + ": master, m and v from bf16 to fp32, exactly\n";
  const size_t at = widened.out.find(line);
  ASSERT_NE(at, std::string::npos) << widened.out;
  EXPECT_EQ(widened.Text().find(same, at + line.size()), std::string::npos) << widened.Text();
  const Outcome again = on(13);
  ASSERT_EQ(again.code, 0) << again.Text();
  EXPECT_FALSE(Has(again.Text(), same)) << again.Text();
}

TEST_F(CheckpointCommand, LsOfADirectoryOfRunsListsThem) {
  job_.RunDir("without");
  ASSERT_EQ(job_.Train({"checkpoint.every=null", "train.steps=3"}).code, 0);
  const Outcome list = Checkpoint({"ls", job_.dir().path()});
  EXPECT_EQ(list.code, 0) << list.Text();
  const Json all = Json::parse(Checkpoint({"ls", job_.dir().path(), "--json"}).out);
  EXPECT_TRUE(all["checkpoints"].empty());
  ASSERT_EQ(all["runs"].size(), 2u) << all;
  const Json &run = all["runs"][0], &without = all["runs"][1];
  EXPECT_EQ(run["name"], "run");
  EXPECT_EQ(run["step"], 10);
  EXPECT_EQ(run["checkpoint"], 10);
  EXPECT_EQ(without["step"], 3);
  EXPECT_TRUE(without["checkpoint"].is_null());
  EXPECT_EQ(run["loss"], OfKind(ReadMetrics(job_.dir() / "run"), "step").back()["loss"]);
  char loss[32];
  std::snprintf(loss, sizeof(loss), "%.4f", run["loss"].get<double>());
  EXPECT_TRUE(Has(list.out, "\nrun              10      " + std::string(loss) + "          10  20"))
      << list.out;
  EXPECT_TRUE(Has(list.out, "2 runs of ")) << list.out;
}

// A run that saves at every step and keeps one, and all that read a run, at any moment.
TEST(Rotation, LeavesToReadersWhatTheyRead) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int kRounds = 6;  // Each takes several times as long.
#else
  constexpr int kRounds = 12;
#endif
  Job job;
  Process run = job.Start(job.Flags(
      {"train.steps=100000000", "model.vocab_size=256", "checkpoint={every: 1, keep_last: 1}"}));
  const std::string latest = job.run_dir() + "/checkpoints/latest";
  ASSERT_TRUE(Eventually([&] { return Exists(latest); })) << run.Out();
  std::set<std::string> seen;
  for (int i = 0; i < kRounds; ++i) {
    const std::string out = job.dir() / ("out" + std::to_string(i));
    const std::vector<Strings> calls = {
        {"generate", "--checkpoint", job.run_dir(), "--prompt", "a", "--tokenizer", "bytes",
         "--max-tokens", "3"},
        {"checkpoint", "export", job.run_dir(), "--out", out + "_hf"},
        {"checkpoint", "reshard", job.run_dir(), "--world-size", "2", "--out", out},
        {"checkpoint", "verify", job.run_dir()},
        {"checkpoint", "ls", job.run_dir()}};
    for (const Strings& call : calls) {
      const Outcome outcome = Call(call);
      EXPECT_EQ(outcome.code, 0) << i << ": " << call[0] << " " << call[1] << "\n"
                                 << outcome.Text();
    }
    EXPECT_EQ(Checkpoint({"verify", out}).code, 0);
    seen.insert(ReadFile(latest));
  }
  ASSERT_TRUE(run.Running()) << run.Out();
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait().code, 75);
  EXPECT_GT(seen.size(), 3u);
}

// A run that goes on from the resharded one and a run that goes on from the original: the same.
TEST_F(CheckpointCommand, ReshardChangesNothing) {
  const std::string out = job_.dir() / "resharded";
  const Outcome reshard =
      Checkpoint({"reshard", Step(8), "--world-size", "6", "--shard-size", "3", "--out", out});
  ASSERT_EQ(reshard.code, 0) << reshard.Text();
  EXPECT_TRUE(Has(reshard.out, out + ": ranks 6, 3 a copy; ")) << reshard.out;
  EXPECT_EQ(Checkpoint({"verify", out}).code, 0);
  const auto go_on = [&](const std::string& name, const std::string& from) {
    job_.RunDir(name);
    const Outcome run =
        job_.Launch(3, {"train.steps=12", "checkpoint={every: 100, resume: " + from + "}"});
    EXPECT_EQ(run.code, 0) << run.Text();
    std::string text;
    for (const Json& r : OfKind(ReadMetrics(job_.run_dir()), "step")) {
      text += r["loss"].dump() + " " + r["grad_norm"].dump() + "\n";
    }
    for (int rank = 0; rank < 3; ++rank) {
      text += ReadFile(job_.run_dir() + "/checkpoints/step_12/rank_" + std::to_string(rank) +
                       ".safetensors");
    }
    return text;
  };
  const std::string original = Step(8);
  const std::string want = go_on("original", original), got = go_on("other", out);
  EXPECT_GT(want.size(), 10000u);
  EXPECT_TRUE(got == want);
}

TEST_F(CheckpointCommand, MistakesHaveTheirExitCodes) {
  const std::string out = job_.dir() / "out";
  const auto reshard = [&](const Strings& more) {
    Strings all = {"reshard", Step(10), "--out", out};
    all.insert(all.end(), more.begin(), more.end());
    return Checkpoint(all);
  };
  const Outcome uneven = reshard({"--world-size", "4", "--shard-size", "3"});
  EXPECT_EQ(uneven.code, 2) << uneven.Text();
  EXPECT_TRUE(Has(uneven.err, "--shard-size: 3 does not divide --world-size 4")) << uneven.err;
  EXPECT_EQ(reshard({}).code, 2);
  EXPECT_EQ(reshard({"--world-size", "0"}).code, 2);
  EXPECT_EQ(Checkpoint({}).code, 2);
  EXPECT_EQ(Checkpoint({"remove", Step(10)}).code, 2);
  EXPECT_FALSE(Exists(out));
  ASSERT_EQ(reshard({"--world-size", "1"}).code, 0);
  const std::string bytes = ReadFile(out + "/rank_0.safetensors");
  const Outcome again = reshard({"--world-size", "2"});
  EXPECT_EQ(again.code, 5);
  EXPECT_TRUE(Has(again.err, out + ": is there already, and is not overwritten")) << again.err;
  EXPECT_TRUE(ReadFile(out + "/rank_0.safetensors") == bytes);
  EXPECT_EQ(Checkpoint({"reshard", job_.dir() / "no", "--world-size", "1", "--out", "x"}).code, 5);
}

}  // namespace
}  // namespace fsdp::e2e
