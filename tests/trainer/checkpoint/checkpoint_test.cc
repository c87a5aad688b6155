#include "trainer/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/testing/error_of.h"
#include "tests/testing/everything.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/nn/parameter.h"

namespace fsdp {
namespace {

using testing::ErrorOf;

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

const WrapPolicy kWraps[] = {
    {AutoWrap::kTransformerBlock, 0}, {AutoWrap::kNone, 0}, {AutoWrap::kSize, 3000}};

World Of(int world, int shards, const WrapPolicy& wrap = kWraps[0]) {
  World w;
  w.world = world;
  w.shards = shards;
  w.wrap = wrap;
  return w;
}

Strings NoErrors(int world) { return Strings(world); }

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void Spill(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

void FlipByte(const std::string& path, int64_t at, uint8_t mask) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ mask);
  file.seekp(at);
  file.put(byte);
}

TEST(CheckpointTest, GivesBackMetaAndStates) {
  const std::string dir = FreshDirectory("meta");
  ASSERT_EQ(Save(Of(2, 2), dir, 7), NoErrors(2));
  const std::string path = FindCheckpoint(dir, 7);
  EXPECT_EQ(path, dir + "/step_7");
  EXPECT_EQ(ReadWholeFile(dir + "/latest"), "step_7");
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_7"}));
  EXPECT_EQ(ListSorted(path),
            (Strings{"manifest.json", "rank_0.safetensors", "rank_1.safetensors"}));
  const CheckpointMeta meta = ReadCheckpointMeta(path), want = MetaOf(7);
  EXPECT_EQ(meta.step, want.step);
  EXPECT_EQ(meta.tokens, want.tokens);
  EXPECT_EQ(meta.seed, want.seed);
  EXPECT_EQ(meta.recipe, want.recipe);
  EXPECT_EQ(meta.config, want.config);
  EXPECT_EQ(LoadAndCompare(Of(2, 2), path, 7), "");
}

TEST(CheckpointTest, SaysHowManyBytesItWrote) {
  const std::string dir = FreshDirectory("bytes");
  const World world = Of(1, 1);
  const Layout layout = world.MakeLayout();
  RankStates states(layout, {}, world.states);
  MemoryStore store;
  const SavedCheckpoint saved =
      SaveCheckpoint(dir + "/made/too", layout, {}, states.states(), MetaOf(0), store, 3, 0);
  EXPECT_EQ(saved.path, dir + "/made/too/step_0");
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(saved.path)) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(saved.bytes, bytes);
}

// Every world of up to 5 ranks, with every number of replicas and every wrapping, is read at every
// F and, by a run, in one wrapping of three: each element of each state, and zeros between.
TEST(CheckpointTest, AnyWorldReadsAnyOther) {
  size_t saved = 0;
  for (int world = 1; world <= 5; ++world) {
    for (int shards = 1; shards <= world; ++shards) {
      if (world % shards != 0) continue;
      for (const WrapPolicy& wrap : kWraps) {
        const std::string dir = FreshDirectory("any");
        ASSERT_EQ(Save(Of(world, shards, wrap), dir, 5), NoErrors(world));
        ++saved;
        for (int to = 1; to <= 5; ++to) {
          for (const WrapPolicy& to_wrap : kWraps) {
            if (testing::OfAnotherPart(saved + to + (&to_wrap - kWraps), 3)) continue;
            EXPECT_EQ(LoadAndCompare(Of(to, to, to_wrap), dir + "/step_5", 5), "")
                << "from world " << world << ", F " << shards << ", wrap "
                << static_cast<int>(wrap.policy) << " to F " << to << ", wrap "
                << static_cast<int>(to_wrap.policy);
          }
        }
      }
    }
  }
}

// h.1.w in so many units.
World InParts(int shards, int64_t parts) {
  World world = Of(shards, shards);
  std::erase_if(world.model[2].parameters,
                [](const ParameterShape& p) { return p.name == "h.1.w"; });
  const int64_t rows = 24 / parts;
  for (int64_t i = 0; i < parts; ++i) {
    const std::string name = NameOfRows("h.1.w", i * rows, (i + 1) * rows, 24);
    world.model.push_back({name, true, {{name, Shape{rows, 71}}}});
  }
  return world;
}

// In one or by rows, whatever there is.
TEST(CheckpointTest, RowsAreReadInOtherParts) {
  for (const int64_t from : {1, 3, 4, 24}) {
    const std::string dir = FreshDirectory("parts");
    ASSERT_EQ(Save(InParts(3, from), dir, 5), NoErrors(3));
    for (const int64_t to : {1, 2, 4, 6}) {
      EXPECT_EQ(LoadAndCompare(InParts(2, to), dir + "/step_5", 5), "") << from << " to " << to;
    }
    World shorter = InParts(1, 1);
    shorter.model.back().parameters[0].shape = Shape{12, 71};
    EXPECT_TRUE(Contains(LoadAndCompare(shorter, dir + "/step_5", 5),
                         from == 1 ? " has shape [24" : "no parameter 'h.1.w'"));
    World other = InParts(2, 4);
    other.model.back().parameters[0].shape = Shape{6, 70};
    EXPECT_TRUE(Contains(LoadAndCompare(other, dir + "/step_5", 5), " has shape ["));
    other.model.back().parameters[0] = {"h.1.w[18:26]", Shape{8, 71}};
    EXPECT_TRUE(
        Contains(LoadAndCompare(other, dir + "/step_5", 5), "has no parameter 'h.1.w[18:26]'"));
  }
  // Rows that nobody has saved.
  const std::string dir = FreshDirectory("some");
  World some = InParts(1, 4);
  some.model.erase(some.model.end() - 2);
  ASSERT_EQ(Save(some, dir, 1), NoErrors(1));
  EXPECT_TRUE(Contains(LoadAndCompare(InParts(1, 1), dir + "/step_1", 1), "no parameter 'h.1.w'"));
}

// Frozen parameters have no m and no v, at any F; freezing something else is not how a run goes on.
TEST(CheckpointTest, FrozenParametersHaveNoOptimizerState) {
  World world = Of(3, 3);
  world.model[0].parameters[0].frozen = true;
  for (ParameterShape& p : world.model[2].parameters) p.frozen = true;
  const std::string dir = FreshDirectory("frozen");
  ASSERT_EQ(Save(world, dir, 5), NoErrors(3));
  const SafetensorsReader file(dir + "/step_5/rank_1.safetensors");
  EXPECT_TRUE(file.Contains("master/root.frozen/fp32"));
  EXPECT_TRUE(file.Contains("master/h.1.frozen/fp32"));
  for (const std::string& name : file.Names()) {
    EXPECT_TRUE(name.starts_with("master/") || !Contains(name, "frozen")) << name;
  }
  World other = world;
  for (other.shards = other.world = 1; other.world <= 4; other.shards = ++other.world) {
    EXPECT_EQ(LoadAndCompare(other, dir + "/step_5", 5), "") << other.world;
  }
  other = Of(1, 1);
  EXPECT_TRUE(Contains(LoadAndCompare(other, dir + "/step_5", 5),
                       "has no state 'm' of 'wte', which was frozen"));
  other.states = {"master"};
  EXPECT_EQ(LoadAndCompare(other, dir + "/step_5", 5), "");
}

TEST(CheckpointTest, ReplicasShareTheWriting) {
  const std::string dir = FreshDirectory("replicas");
  World world = Of(4, 2);
  world.states = {"master"};
  // A shard of 3 blocks of 256 and one of 1: replicas write 1 and 2 blocks, and 0 and 1.
  world.model = {{"embedding", false, {{"wte", Shape{1500}}}}, {"h.0", true, {{"w", Shape{500}}}}};
  ASSERT_EQ(Save(world, dir, 1), NoErrors(4));
  const int64_t root[] = {256, 256, 512, 512}, block[] = {0, 0, 256, 256};
  for (int rank = 0; rank < 4; ++rank) {
    const SafetensorsReader file(dir + "/step_1/rank_" + std::to_string(rank) + ".safetensors");
    EXPECT_EQ(file.Info("master/root/fp32").NumElements(), root[rank]);
    EXPECT_EQ(file.Contains("master/h.0/fp32"), block[rank] > 0);
    if (block[rank] > 0) {
      EXPECT_EQ(file.Info("master/h.0/fp32").NumElements(), block[rank]);
    }
    const int64_t data = (root[rank] + block[rank]) * 4;
    EXPECT_GE(file.file_bytes(), data);
    EXPECT_LT(file.file_bytes(), data + 256);
  }
  EXPECT_EQ(LoadAndCompare(world, dir + "/step_1", 1), "");
}

TEST(CheckpointTest, LeavesRanksWithoutAnythingToWrite) {
  const std::string dir = FreshDirectory("idle");
  World world = Of(3, 1);
  world.model = {{"embedding", false, {{"wte", Shape{5}}}}};
  ASSERT_EQ(Save(world, dir, 1), NoErrors(3));
  EXPECT_TRUE(SafetensorsReader(dir + "/step_1/rank_0.safetensors").Names().empty());
  EXPECT_EQ(LoadAndCompare(world, dir + "/step_1", 1), "");
}

TEST(CheckpointTest, RanksReadOneFilesTensorsInTheirOwnFormat) {
  const std::string dir = FreshDirectory("format");
  ASSERT_EQ(Save(Of(2, 2), dir, 4), NoErrors(2));
  const SafetensorsReader file(dir + "/step_4/rank_0.safetensors");
  EXPECT_EQ(file.Names(),
            (Strings{"master/root/fp32", "master/h.0/fp32", "master/h.1/fp32", "master/h.2/fp32",
                     "m/root/fp32", "m/h.0/fp32", "m/h.1/fp32", "m/h.2/fp32", "v/root/fp32",
                     "v/h.0/fp32", "v/h.1/fp32", "v/h.2/fp32"}));
  std::vector<float> first(3);
  file.ReadFloat("m/h.1/fp32", 64, first);  // h.1.w begins there, after h.1.ln.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first[i], ElementOf("m", "h.1.w", i, 4));
}

TEST(CheckpointTest, WeightsStartAnotherRun) {
  const std::string dir = FreshDirectory("weights");
  ASSERT_EQ(Save(Of(3, 3), dir, 6), NoErrors(3));
  CheckpointReader weights(dir + "/step_6");
  std::vector<float> values(1000);
  weights.Read("master", "h.2.w", Shape{24, 71}, 700, values);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(values[i], ElementOf("master", "h.2.w", 700 + i, 6));
  EXPECT_TRUE(Contains(ErrorOf([&] { weights.Read("master", "h.3.w", Shape{1}, 0, values); }),
                       "has no parameter 'h.3.w'"));
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         weights.Read("master", "h.2.w", Shape{71, 24}, 0, values);
                       }),
                       "'h.2.w' has shape [24, 71], want [71, 24]"));
  EXPECT_THROW(weights.Read("master", "h.2.w", Shape{24, 71}, 705, values), std::invalid_argument);
  EXPECT_THROW(weights.Read("master", "h.2.w", Shape{24, 71}, -1, values), std::invalid_argument);
}

TEST(CheckpointTest, NamesWhatDoesNotFit) {
  const std::string dir = FreshDirectory("misfit");
  ASSERT_EQ(Save(Of(2, 2), dir, 1), NoErrors(2));
  const auto error = [&](const World& world) { return LoadAndCompare(world, dir + "/step_1", 1); };
  // Alike on all ranks: LoadAndCompare reports the first, whose shard may hold none of it.
  World world = Of(5, 5);
  world.states = {"master", "momentum"};
  EXPECT_TRUE(Contains(error(world), "has no state 'momentum'; it has master, m, v"));
  world = Of(5, 5);
  world.model[4].parameters.push_back({"bias", Shape{3}});
  EXPECT_TRUE(Contains(error(world), "rank 0: ") && Contains(error(world), "no parameter 'bias'"));
  world = Of(5, 5);
  world.model[4].parameters[0].shape = Shape{25};
  EXPECT_TRUE(Contains(error(world), "'ln_f' has shape [24], want [25]"));
  world = Of(5, 5);
  world.model.pop_back();
  EXPECT_TRUE(Contains(error(world), "'ln_f', which the model does not have"));
  // Fewer states than there are: that is for the caller to choose.
  world = Of(5, 5);
  world.states = {"v"};
  EXPECT_EQ(error(world), "");
}

TEST(CheckpointTest, RefusesCallersMistakes) {
  const World world = Of(2, 2);
  const Layout layout = world.MakeLayout();
  const ShardPlace place = PlaceOf(1, 2, 2);
  RankStates good(layout, place, world.states);
  const std::string dir = FreshDirectory("mistakes");
  const auto load = [&](const ShardPlace& p, const std::vector<CheckpointState>& states) {
    LoadCheckpoint(dir, layout, p, states);
  };
  auto states = good.states();
  states[1].name = "master";
  EXPECT_THROW(load(place, states), std::invalid_argument);
  states[1].name = "a/b";
  EXPECT_THROW(load(place, states), std::invalid_argument);
  states = good.states();
  states[2].shards.pop_back();
  EXPECT_THROW(load(place, states), std::invalid_argument);
  states = good.states();
  states[0].shards[1] = states[0].shards[1].Slice(0, 255);
  EXPECT_THROW(load(place, states), std::invalid_argument);
  EXPECT_THROW(load({1, 2, 0, 0, 1}, good.states()), std::invalid_argument);
  EXPECT_THROW(load({2, 3, 0, 1, 1}, good.states()), std::invalid_argument);
}

TEST(CheckpointTest, FindsMissingShortAndLongFiles) {
  const std::string dir = FreshDirectory("files");
  const World world = Of(3, 3);
  ASSERT_EQ(Save(world, dir, 1), NoErrors(3));
  ASSERT_EQ(Save(world, dir, 2), NoErrors(3));
  const std::string path = dir + "/step_2";
  // A file that the manifest does not name is no part of the checkpoint.
  Spill(path + "/rank_3.safetensors", "mine");
  EXPECT_EQ(LoadAndCompare(world, path, 2), "");

  for (const char* name : {"rank_0.safetensors", "rank_2.safetensors", "manifest.json"}) {
    const std::string file = path + "/" + name, aside = dir + "/aside";
    const auto size = fs::file_size(file);
    const std::string whole = ReadWholeFile(file);
    const auto expect_refused = [&](const std::string& why) {
      const std::string error = LoadAndCompare(world, path, 2);
      EXPECT_TRUE(Contains(error, "rank 0: " + file) && Contains(error, why)) << error;
      EXPECT_TRUE(Contains(ErrorOf([&] { FindCheckpoint(dir, 2); }), file));
      const std::string newest = ErrorOf([&] { FindLatestCheckpoint(dir); });
      EXPECT_TRUE(Contains(newest, file) && Contains(newest, "checkpoint.resume")) << newest;
    };
    fs::rename(file, aside);
    expect_refused("No such file");
    fs::create_directory(file);
    expect_refused("is not a file");
    fs::remove(file);
    fs::rename(aside, file);
    const bool manifest = std::string(name) == "manifest.json";
    fs::resize_file(file, size - 1);
    expect_refused(manifest ? "damaged" : "want " + std::to_string(size));
    fs::resize_file(file, size + 1);
    expect_refused(manifest ? "damaged" : "want " + std::to_string(size));
    Spill(file, whole);
    EXPECT_EQ(LoadAndCompare(world, path, 2), "");
  }
}

// At another F than the writer's: each rank reads parts of files.
TEST(CheckpointTest, FindsEveryFlippedByte) {
  const std::string dir = FreshDirectory("flips");
  ASSERT_EQ(Save(Of(2, 2), dir, 1), NoErrors(2));
  const std::string path = dir + "/step_1";
  std::mt19937_64 random(20260101);
  const Strings names = ListSorted(path);
  for (int i = 0; i < 200; ++i) {
    const std::string file = path + "/" + names[random() % names.size()];
    const auto at = static_cast<int64_t>(random() % fs::file_size(file));
    const auto mask = static_cast<uint8_t>(1 + random() % 255);
    FlipByte(file, at, mask);
    for (const int shards : {1, 3}) {
      const std::string error = LoadAndCompare(Of(shards, shards), path, 1);
      EXPECT_TRUE(Contains(error, file) && !Contains(error, "differs"))
          << "byte " << at << " of " << file << ", mask " << int{mask} << ": " << error;
    }
    FlipByte(file, at, mask);
  }
  EXPECT_EQ(LoadAndCompare(Of(3, 3), path, 1), "");
}

// Files of several chunks: who reads a damaged one says so, and the others do not need it.
TEST(CheckpointTest, VerifiesTheChunksThatItReads) {
  const std::string dir = FreshDirectory("chunks");
  World world = Of(1, 1);
  world.states = {"master"};
  world.model = {{"embedding", false, {{"w", Shape{1000, 1001}}, {"b", Shape{77}}}}};
  ASSERT_EQ(Save(world, dir, 1), NoErrors(1));
  const std::string file = dir + "/step_1/rank_0.safetensors";
  ASSERT_GT(fs::file_size(file), 3u << 20);
  World readers = world;
  readers.world = readers.shards = 4;
  EXPECT_EQ(LoadAndCompare(readers, dir + "/step_1", 1), "");
  std::mt19937_64 random(7);
  for (int i = 0; i < 20; ++i) {
    const auto at = static_cast<int64_t>(random() % fs::file_size(file));
    FlipByte(file, at, 0x10);
    const std::string first = std::to_string(at >> 20 << 20);
    const std::string error = LoadAndCompare(readers, dir + "/step_1", 1);
    EXPECT_TRUE(Contains(error, "is damaged: bytes " + first + " to ")) << at << ": " << error;
    FlipByte(file, at, 0x10);
  }
  FlipByte(file, (1 << 20) + 100, 1);  // Elements of shards 0 and 1 alone, and not the header.
  const Layout layout = readers.MakeLayout();
  RankStates states(layout, PlaceOf(3, 4, 4), readers.states);
  states.Poison();
  LoadCheckpoint(dir + "/step_1", layout, PlaceOf(3, 4, 4), states.states());
  EXPECT_EQ(states.Difference(1), "");
}

TEST(CheckpointTest, FindsTheLatest) {
  const std::string dir = FreshDirectory("latest");
  EXPECT_EQ(FindLatestCheckpoint(dir + "/missing"), std::nullopt);
  EXPECT_EQ(FindLatestCheckpoint(dir), std::nullopt);
  for (const int step : {9, 10, 100}) ASSERT_EQ(Save(Of(1, 1), dir, step), NoErrors(1));
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_100");
  // `latest` counts, not the number: a run may have gone back.
  Spill(dir + "/latest", "step_10\n");
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_10");
  // A crash between the rename and `latest`, of the first checkpoint and of any.
  fs::remove(dir + "/latest");
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_100");
  // No save leaves this behind: an older one is not taken for the newest in silence.
  const auto newest = [&] { return ErrorOf([&] { FindLatestCheckpoint(dir); }); };
  const std::string others = "set checkpoint.resume to its step (complete: 9, 10";
  for (const char* text : {"../step_9", "step_010", "step_", "", "step_9.tmp", "\x1b[2Jstep_9",
                           "step_99999999999999999999"}) {
    Spill(dir + "/latest", text);
    EXPECT_TRUE(Contains(newest(), dir + "/latest: is damaged") && Contains(newest(), others))
        << newest();
    EXPECT_FALSE(Contains(newest(), "\x1b"));
  }
  Spill(dir + "/latest", "step_11");
  EXPECT_TRUE(Contains(newest(), "step_11/manifest.json: No such file")) << newest();
  EXPECT_TRUE(Contains(newest(), "which `latest` names") && Contains(newest(), others + ")"));
  Spill(dir + "/latest", "step_100");
  fs::remove(dir + "/step_100/manifest.json");
  EXPECT_TRUE(Contains(newest(), "step_100/manifest.json") && Contains(newest(), others + ")"));
  fs::remove(dir + "/latest");  // Nor is one without that name.
  EXPECT_TRUE(Contains(newest(), "step_100/manifest.json") && Contains(newest(), others + ")"));
  fs::remove_all(dir + "/step_100");
  fs::create_directory(dir + "/step_200");  // Nothing of ours is in it.
  Spill(dir + "/step_200/readme", "mine");
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_10");
  // A directory under another step's name is not that step's.
  fs::rename(dir + "/step_10", dir + "/step_12");
  EXPECT_TRUE(Contains(newest(), "step_12: holds step 10")) << newest();
  EXPECT_TRUE(Contains(ErrorOf([&] { FindCheckpoint(dir, 12); }), "holds step 10"));
  EXPECT_TRUE(Contains(ErrorOf([&] { FindCheckpoint(dir, 5); }), "there are those of steps 9"));
  // Something was saved and nothing is left: to start again in silence would bury it.
  Spill(dir + "/latest", "step_9");
  for (const char* step : {"/step_9", "/step_12"}) fs::remove_all(dir + step);
  EXPECT_TRUE(Contains(newest(), "was moved or removed;") && !Contains(newest(), "resume"))
      << newest();
  EXPECT_TRUE(Contains(newest(), "move " + dir + " away to begin anew")) << newest();
}

// A hundred damages of the newest of three, of all kinds and at any place: none is taken for an
// older one, each names its file, and the run can go back to an older one.
TEST(CheckpointTest, ADamagedNewestOneIsNeverPassedOver) {
  constexpr int kSeed = 20261122, kDamages = 100;
  std::printf("seed %d\n", kSeed);
  std::mt19937_64 random(kSeed);
  const World world = Of(2, 2);
  const std::string whole = FreshDirectory("whole"), dir = FreshDirectory("damages") + "/c";
  for (const int step : {5, 10, 15}) ASSERT_EQ(Save(world, whole, step), NoErrors(2));
  int on_load = 0;
  for (int i = 0; i < kDamages; ++i) {
    fs::remove_all(dir);
    fs::copy(whole, dir, fs::copy_options::recursive);
    const std::string path = dir + "/step_15";
    const Strings names = ListSorted(path);
    std::string file = path + "/" + names[random() % names.size()];
    const auto size = fs::file_size(file);
    switch (random() % 7) {
      case 0:
        fs::remove(file);
        break;
      case 1:
        fs::resize_file(file, random() % size);
        break;
      case 2:
        fs::resize_file(file, size + 1 + random() % 5000);
        break;
      case 3:
        fs::remove_all(path);
        file = path;
        break;
      case 4:
        file = dir + "/latest";
        Spill(file, std::string(random() % 9, static_cast<char>(random() % 256)));
        break;
      case 5:
        fs::remove(file);
        fs::create_directory(file);
        break;
      default:
        FlipByte(file, static_cast<int64_t>(random() % size),
                 static_cast<uint8_t>(1 + random() % 255));
    }
    std::string error;
    try {
      const auto found = FindLatestCheckpoint(dir);
      ASSERT_EQ(found, path) << i;
      error = LoadAndCompare(world, *found, 15);
      EXPECT_TRUE(Contains(error, "is damaged: bytes ")) << i << ": " << error;
      EXPECT_TRUE(Contains(HowToGoOn(path), "(complete: 5, 10)")) << HowToGoOn(path);
      ++on_load;
    } catch (const CheckpointError& e) {
      error = e.what();
      EXPECT_TRUE(Contains(error, "(complete: 5, 10")) << i << ": " << error;
    }
    EXPECT_TRUE(Contains(error, file)) << i << ": " << error << "\nwant " << file;
    const bool there = fs::exists(path);
    EXPECT_EQ(GoBackTo(dir, 10), there ? Strings{"step_15.aside"} : Strings{}) << i;
    EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_10") << i;
    EXPECT_EQ(LoadAndCompare(world, dir + "/step_10", 10), "") << i;
  }
  EXPECT_GT(on_load, 5);
  EXPECT_LT(on_load, kDamages / 2);
}

// Nobody but their owner touches them, and they stand in nobody's way.
TEST(CheckpointTest, WhatIsSetAsideCountsForNothing) {
  const std::string dir = FreshDirectory("gone_back");
  const World world = Of(2, 2);
  for (const int step : {1, 2, 3, 4}) ASSERT_EQ(Save(world, dir, step), NoErrors(2));
  fs::rename(dir + "/step_4", dir + "/step_4.old");
  EXPECT_EQ(GoBackTo(dir, 2), (Strings{"step_3.aside", "step_4.aside"}));
  EXPECT_EQ(ReadWholeFile(dir + "/latest"), "step_2");
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_2");
  EXPECT_EQ(StepsIn(dir), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(ListCheckpoints(dir).size(), 2u);
  EXPECT_TRUE(Contains(ErrorOf([&] { FindCheckpoint(dir, 3); }), "there are those of steps 1, 2"));
  fs::remove(dir + "/latest");
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_2");
  // The same again, where the names are taken; then rotation, and its leftovers.
  for (const int step : {3, 4}) ASSERT_EQ(Save(world, dir, step), NoErrors(2));
  EXPECT_EQ(GoBackTo(dir, 1), (Strings{"step_2.aside", "step_3.aside.2", "step_4.aside.2"}));
  EXPECT_EQ(GoBackTo(dir, 1), Strings{});
  for (const int step : {5, 6}) ASSERT_EQ(Save(world, dir, step, /*keep_last=*/1), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_2.aside", "step_3.aside", "step_3.aside.2",
                                      "step_4.aside", "step_4.aside.2", "step_6"}));
  EXPECT_EQ(LoadAndCompare(world, dir + "/step_3.aside", 3), "");  // By its name, whole.
}

// By age: a damaged one is neither kept for ever nor counted out.
TEST(CheckpointTest, RotationDoesNotLookInside) {
  const std::string dir = FreshDirectory("by_age");
  const World world = Of(2, 2);
  for (const int step : {1, 2, 3}) ASSERT_EQ(Save(world, dir, step), NoErrors(2));
  fs::remove(dir + "/step_2/manifest.json");
  fs::resize_file(dir + "/step_1/rank_0.safetensors", 10);
  ASSERT_EQ(Save(world, dir, 4, /*keep_last=*/3), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_2", "step_3", "step_4"}));
  ASSERT_EQ(Save(world, dir, 5, /*keep_last=*/2), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_4", "step_5"}));
}

// One element of one state of one rank, at any place: no rank's save succeeds, and what there was
// is in force.
TEST(CheckpointTest, WhatIsNotFiniteIsNeverPublished) {
  constexpr int kSeed = 4711;
  std::printf("seed %d\n", kSeed);
  std::mt19937_64 random(kSeed);
  const std::string dir = FreshDirectory("not_finite");
  World world = Of(3, 3);
  ASSERT_EQ(Save(world, dir, 1), NoErrors(3));
  const float values[] = {NAN, -NAN, INFINITY, -INFINITY};
  MemoryStore store(60);
  for (int i = 0; i < 60; ++i) {
    const int victim = static_cast<int>(random() % 3);
    std::string name;
    world.before_save = [&](int rank, const std::vector<CheckpointState>& states) {
      if (rank != victim) return;
      const CheckpointState& state = states[random() % states.size()];
      const View& shard = state.shards[random() % state.shards.size()];
      const auto at = random() % static_cast<uint64_t>(shard.NumElements());
      shard.As<float>()[at] = values[random() % 4];
      name = state.name + " of ";
    };
    for (const std::string& error : Save(world, dir, 2, /*keep_last=*/1, store, i)) {
      EXPECT_TRUE(Contains(error, "exit 7: the checkpoint was not saved: rank " +
                                      std::to_string(victim) + ": " + name) &&
                  Contains(error, "not finite"))
          << error;
    }
    ASSERT_EQ(ListSorted(dir), (Strings{"latest", "step_1"}));
    ASSERT_EQ(FindLatestCheckpoint(dir), dir + "/step_1");
  }
  EXPECT_EQ(LoadAndCompare(world, dir + "/step_1", 1), "");
  world.before_save = nullptr;
  EXPECT_EQ(Save(world, dir, 2, 1, store, 60), NoErrors(3));
}

// A run that saves at every step and keeps one, and readers that come at any moment.
TEST(CheckpointTest, ReadersHoldWhatTheyRead) {
  constexpr int kReads = 60, kReaders = 3, kEnough = 10;  // Each reader's, at least.
  const std::string run = FreshDirectory("held"), dir = run + "/checkpoints";
  const World world = Of(2, 2);
  ASSERT_EQ(Save(world, dir, 1), NoErrors(2));
  std::atomic<bool> stop = false;
  std::atomic<int64_t> saved = 1;
  std::thread writer([&] {
    MemoryStore store(60);
    while (!stop) {
      const int64_t step = saved + 1;
      EXPECT_EQ(Save(world, dir, step, /*keep_last=*/1, store, step), NoErrors(2));
      saved = step;
    }
  });
  std::atomic<int> different = 0, reads = 0;
  const auto read = [&](int reader) {
    std::string last;
    for (int i = 0; i < kReads || saved <= kEnough || different <= kEnough; ++i) {
      ++reads;
      EXPECT_EQ(ErrorOf([&] { ListCheckpoints(run); }), "");
      std::string error;
      const std::string failed = ErrorOf([&] {
        const CheckpointHold held = HoldCheckpoint(i % 2 == 0 ? run : dir);
        const int64_t step = ReadCheckpointMeta(held.path()).step;
        if (i % 8 == reader) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        error = LoadAndCompare(world, held.path(), static_cast<uint64_t>(step));
        if (std::exchange(last, held.path()) != held.path()) ++different;
      });
      EXPECT_EQ(failed + error, "") << "read " << i;
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) readers.emplace_back(read, i);
  for (std::thread& reader : readers) reader.join();
  stop = true;
  writer.join();
  std::printf("%d reads of %d checkpoints while %lld were saved\n", reads.load(), different.load(),
              static_cast<long long>(saved.load()));
  ASSERT_EQ(Save(world, dir, saved + 1, /*keep_last=*/1), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_" + std::to_string(saved + 1)}));
}

TEST(CheckpointTest, WhatIsHeldGoesWithALaterSave) {
  const std::string dir = FreshDirectory("held_once");
  const World world = Of(1, 1);
  ASSERT_EQ(Save(world, dir, 1), NoErrors(1));
  {
    const CheckpointHold held = HoldCheckpoint(dir);
    const CheckpointHold other = HoldCheckpoint(dir + "/step_1");  // Readers share it.
    for (const int step : {2, 3}) ASSERT_EQ(Save(world, dir, step, 1), NoErrors(1));
    EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_1", "step_3"}));
    EXPECT_EQ(LoadAndCompare(world, held.path(), 1), "");
  }
  ASSERT_EQ(Save(world, dir, 4, 1), NoErrors(1));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_4"}));
}

// It gets another name under them, and a later save may give theirs to another.
TEST(CheckpointTest, GoingBackLeavesToReadersWhatTheyRead) {
  const std::string dir = FreshDirectory("held_back");
  const World world = Of(2, 2);
  for (const int step : {1, 2, 3}) ASSERT_EQ(Save(world, dir, step), NoErrors(2));
  CheckpointReader second(HoldCheckpoint(dir + "/step_2"));
  CheckpointHold third = HoldCheckpoint(dir);
  EXPECT_FALSE(third.Moved());
  EXPECT_EQ(GoBackTo(dir, 1), (Strings{"step_2.aside", "step_3.aside"}));
  EXPECT_TRUE(third.Moved());
  MemoryStore store(60);
  ASSERT_EQ(Save(world, dir, 3, /*keep_last=*/0, store, /*attempt=*/0, /*salt=*/77), NoErrors(2));
  std::vector<float> wte(3);
  const FlatParameter& flat = second.manifest().flat_parameters[0];
  const Placement& p = flat.parameters[0];
  second.Read("m", p.name, p.shape, 0, wte);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(wte[i], ElementOf("m", p.name, i, 2));
  ReshardCheckpoint(std::move(third), 1, 1, dir + "/out", nullptr);
  EXPECT_EQ(LoadAndCompare(Of(1, 1), dir + "/out", 3), "");
  EXPECT_EQ(LoadAndCompare(world, dir + "/step_3", 77), "");
}

TEST(CheckpointTest, WhatIsReplacedWhileItIsReadIsSetAside) {
  const std::string dir = FreshDirectory("held_replaced");
  const World world = Of(2, 2);
  const auto save = [&](uint64_t salt) {
    MemoryStore store(60);
    ASSERT_EQ(Save(world, dir, 3, /*keep_last=*/0, store, /*attempt=*/0, salt), NoErrors(2));
  };
  save(3);
  CheckpointHold held = HoldCheckpoint(dir);
  save(77);
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_3", "step_3.aside"}));
  ReshardCheckpoint(std::move(held), 1, 1, dir + "/out", nullptr);
  EXPECT_EQ(LoadAndCompare(Of(1, 1), dir + "/out", 3), "");
  EXPECT_EQ(LoadAndCompare(world, dir + "/step_3", 77), "");
  save(78);  // Nobody reads it.
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "out", "step_3", "step_3.aside"}));
}

TEST(CheckpointTest, KeepsTheLastOnesAndWhatIsNotItsOwn) {
  const std::string dir = FreshDirectory("keep");
  const World world = Of(2, 2);
  Spill(dir + "/notes.txt", "mine");
  fs::create_directory(dir + "/step_1.backup");
  fs::create_directory(dir + "/step_1");  // Not complete: not ours to remove.
  Spill(dir + "/step_1/readme", "mine");
  for (const int step : {2, 3, 4}) ASSERT_EQ(Save(world, dir, step, 3), NoErrors(2));
  Spill(dir + "/step_3/readme", "mine");
  const Strings rest = {"latest", "notes.txt", "step_1", "step_1.backup"};
  const auto with = [&](Strings steps) {
    steps.insert(steps.begin(), rest.begin(), rest.end());
    return steps;
  };
  EXPECT_EQ(ListSorted(dir), with({"step_2", "step_3", "step_4"}));
  ASSERT_EQ(Save(world, dir, 5, 3), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), with({"step_3", "step_4", "step_5"}));
  ASSERT_EQ(Save(world, dir, 6, 1), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), with({"step_3", "step_6"}));
  EXPECT_EQ(ListSorted(dir + "/step_3"), Strings{"readme"});
  EXPECT_EQ(ListSorted(dir + "/step_1"), Strings{"readme"});
  // A run that went back keeps what lies ahead of it.
  ASSERT_EQ(Save(world, dir, 4, 1), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), with({"step_3", "step_4", "step_6"}));
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_4");
}

TEST(CheckpointTest, RemovesLeftovers) {
  const std::string dir = FreshDirectory("stale");
  ASSERT_EQ(Save(Of(2, 2), dir, 1), NoErrors(2));
  fs::copy(dir + "/step_1", dir + "/step_8.tmp");
  fs::copy(dir + "/step_1", dir + "/step_2.tmp");  // The very one that is written next.
  Spill(dir + "/step_2.tmp/rank_5.safetensors", "of a larger world");
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_1");
  ASSERT_EQ(Save(Of(2, 2), dir, 2), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_1", "step_2"}));
  EXPECT_EQ(ListSorted(dir + "/step_2").size(), 3u);
  EXPECT_EQ(LoadAndCompare(Of(2, 2), dir + "/step_2", 2), "");
}

TEST(CheckpointTest, SavesOverTheSameStep) {
  const std::string dir = FreshDirectory("over");
  World first = Of(4, 4), second = Of(2, 1);
  second.states = {"master"};
  ASSERT_EQ(Save(first, dir, 3), NoErrors(4));
  ASSERT_EQ(Save(second, dir, 3), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_3"}));
  EXPECT_EQ(ListSorted(dir + "/step_3").size(), 3u);
  EXPECT_EQ(LoadAndCompare(second, dir + "/step_3", 3), "");
}

// A file system that cannot exchange directories may leave this behind.
TEST(CheckpointTest, CountsTheOneThatWasSetAside) {
  const std::string dir = FreshDirectory("aside");
  const World world = Of(2, 2);
  ASSERT_EQ(Save(world, dir, 3), NoErrors(2));
  fs::rename(dir + "/step_3", dir + "/step_3.old");
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_3.old");
  ASSERT_EQ(Save(world, dir, 2), NoErrors(2));  // Another step's save must leave it there.
  EXPECT_EQ(FindCheckpoint(dir, 3), dir + "/step_3.old");
  ASSERT_EQ(Save(world, dir, 3), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_2", "step_3"}));
  EXPECT_EQ(LoadAndCompare(world, dir + "/step_3", 3), "");
  fs::copy(dir + "/step_3", dir + "/step_3.old");
  ASSERT_EQ(Save(world, dir, 4), NoErrors(2));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_2", "step_3", "step_4"}));
}

TEST(CheckpointTest, OneRanksFailureIsEverybodys) {
  const std::string dir = FreshDirectory("one_fails");
  const World world = Of(3, 3);
  MemoryStore store(60);
  ASSERT_EQ(Save(world, dir, 1, 1, store, 0), NoErrors(3));
  // Where rank 1's file should be is a directory that is not empty.
  fs::create_directories(dir + "/step_2.tmp/rank_1.safetensors/full");
  const Strings errors = Save(world, dir, 2, 1, store, 1);
  for (const std::string& error : errors) {
    EXPECT_TRUE(Contains(error, "the checkpoint was not saved: rank 1: ") &&
                Contains(error, "step_2.tmp/rank_1.safetensors"))
        << error;
  }
  EXPECT_EQ(ListSorted(dir + "/step_2.tmp"), Strings{"rank_1.safetensors"});
  EXPECT_EQ(FindLatestCheckpoint(dir), dir + "/step_1");
  EXPECT_EQ(LoadAndCompare(world, dir + "/step_1", 1), "");
  // The same store and directory serve the next attempt.
  fs::remove_all(dir + "/step_2.tmp");
  ASSERT_EQ(Save(world, dir, 2, 1, store, 2), NoErrors(3));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_2"}));
}

TEST(CheckpointTest, RefusesAPlaceWhereNothingCanBeMade) {
  const std::string dir = FreshDirectory("no_place");
  Spill(dir + "/file", "");
  for (const std::string& error : Save(Of(2, 2), dir + "/file", 1)) {
    EXPECT_TRUE(Contains(error, "rank 0: " + dir + "/file")) << error;
  }
  // `latest` cannot be replaced: the save fails everywhere, and the checkpoint is there all the
  // same.
  fs::create_directories(dir + "/checkpoints/latest.fsdp-tmp/full");
  for (const std::string& error : Save(Of(2, 2), dir + "/checkpoints", 1)) {
    EXPECT_TRUE(Contains(error, "rank 0: " + dir + "/checkpoints/latest")) << error;
  }
  EXPECT_EQ(FindLatestCheckpoint(dir + "/checkpoints"), dir + "/checkpoints/step_1");
}

TEST(CheckpointTest, ALostRankIsACommError) {
  const std::string dir = FreshDirectory("lost");
  const World world = Of(2, 2);
  const Layout layout = world.MakeLayout();
  RankStates states(layout, PlaceOf(0, 2, 2), world.states);
  MemoryStore store(/*timeout_s=*/60);
  std::thread peer([&] { store.Fail("rank 1 is gone"); });
  EXPECT_THROW(
      SaveCheckpoint(dir, layout, PlaceOf(0, 2, 2), states.states(), MetaOf(1), store, 0, 0),
      CommError);
  peer.join();
  EXPECT_EQ(FindLatestCheckpoint(dir), std::nullopt);
}

}  // namespace
}  // namespace fsdp
