#include "trainer/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/testing/error_of.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using testing::ErrorOf;

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

World Of(int world, int shards, AutoWrap wrap = AutoWrap::kTransformerBlock) {
  World w;
  w.world = world;
  w.shards = shards;
  w.wrap = {wrap, 3000};
  return w;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void ExpectSameFiles(const std::string& got, const std::string& want, const std::string& what) {
  ASSERT_EQ(ListSorted(got), ListSorted(want)) << what;
  for (const std::string& name : ListSorted(want)) {
    EXPECT_TRUE(ReadWholeFile(got + "/" + name) == ReadWholeFile(want + "/" + name))
        << what << ": " << name;
  }
}

// From any world to any other: the bytes that this one would have saved, manifest and all.
TEST(ReshardTest, WritesWhatTheOtherJobWouldHave) {
  const struct {
    int world, shards;
  } worlds[] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {4, 2}, {4, 1}, {6, 3}};
  for (const AutoWrap wrap : {AutoWrap::kTransformerBlock, AutoWrap::kSize, AutoWrap::kNone}) {
    const std::string dir = FreshDirectory("reshard");
    for (size_t i = 0; i < std::size(worlds); ++i) {
      ASSERT_EQ(Save(Of(worlds[i].world, worlds[i].shards, wrap), dir + "/" + std::to_string(i), 5),
                Strings(worlds[i].world));
    }
    for (size_t from = 0; from < std::size(worlds); ++from) {
      for (size_t to = 0; to < std::size(worlds); ++to) {
        const std::string source = dir + "/" + std::to_string(from) + "/step_5";
        const std::string out = dir + "/out";
        int64_t last = 0, of = 0;
        const SavedCheckpoint saved = ReshardCheckpoint(source, worlds[to].world, worlds[to].shards,
                                                        out, [&](int64_t done, int64_t total) {
                                                          EXPECT_LT(last, done);
                                                          last = done;
                                                          of = total;
                                                        });
        EXPECT_EQ(last, of);
        EXPECT_GT(of, 0);
        EXPECT_EQ(saved.path, out);
        int64_t bytes = 0;
        for (const auto& entry : fs::directory_iterator(out)) {
          bytes += static_cast<int64_t>(entry.file_size());
        }
        EXPECT_EQ(saved.bytes, bytes);
        ExpectSameFiles(out, dir + "/" + std::to_string(to) + "/step_5",
                        std::to_string(from) + " to " + std::to_string(to));
        fs::remove_all(out);
      }
    }
  }
}

// Units of more than the block that is held, with padding inside a block.
TEST(ReshardTest, LargeUnitsInBlocks) {
  const std::string dir = FreshDirectory("blocks");
  World world = Of(2, 2);
  world.states = {"master", "m"};
  world.model = {{"embedding", false, {{"w", Shape{1500, 1001}}, {"b", Shape{77}}}},
                 {"h", true, {{"h.w", Shape{3, 700'001}}, {"h.b", Shape{5}}}}};
  ASSERT_EQ(Save(world, dir, 1), Strings(2));
  World to = world;
  to.world = to.shards = 3;
  ReshardCheckpoint(dir + "/step_1", 3, 3, dir + "/out", nullptr);
  EXPECT_EQ(LoadAndCompare(to, dir + "/out", 1), "");
  ASSERT_EQ(Save(to, dir + "/want", 1), Strings(3));
  ExpectSameFiles(dir + "/out", dir + "/want/step_1", "three");
}

TEST(ReshardTest, OverwritesNothing) {
  const std::string dir = FreshDirectory("overwrites");
  ASSERT_EQ(Save(Of(2, 2), dir, 1), Strings(2));
  const std::string source = dir + "/step_1";
  const auto reshard = [&](const std::string& out) {
    return ErrorOf([&] { ReshardCheckpoint(source, 1, 1, out, nullptr); });
  };
  fs::create_directory(dir + "/empty");
  std::ofstream(dir + "/file") << "mine";
  fs::create_symlink("nowhere", dir + "/link");
  for (const char* name : {"step_1", "empty", "empty/", "file", "link", "../overwrites/step_1"}) {
    const std::string error = reshard(dir + "/" + name);
    EXPECT_TRUE(Contains(error, "is there already, and is not overwritten")) << name << error;
  }
  EXPECT_EQ(LoadAndCompare(Of(2, 2), source, 1), "");
  EXPECT_EQ(ReadWholeFile(dir + "/file"), "mine");
  EXPECT_EQ(ListSorted(dir), (Strings{"empty", "file", "latest", "link", "step_1"}));

  // A dead process's leftovers give way, a living one's do not.
  fs::create_directory(dir + "/out.fsdp-tmp");
  std::ofstream(dir + "/out.fsdp-tmp/rank_7.safetensors") << "half";
  const int lock = open((dir + "/out.fsdp-tmp").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  EXPECT_TRUE(Contains(reshard(dir + "/out"), "is being written by another process"));
  EXPECT_TRUE(fs::exists(dir + "/out.fsdp-tmp/rank_7.safetensors"));
  close(lock);
  EXPECT_EQ(reshard(dir + "/out"), "");
  EXPECT_EQ(LoadAndCompare(Of(1, 1), dir + "/out", 1), "");
  EXPECT_FALSE(fs::exists(dir + "/out.fsdp-tmp"));
}

TEST(ReshardTest, AFailureLeavesNothing) {
  const std::string dir = FreshDirectory("failure");
  ASSERT_EQ(Save(Of(2, 2), dir, 1), Strings(2));
  const std::string file = dir + "/step_1/rank_1.safetensors";
  std::string bytes = ReadWholeFile(file);
  bytes[bytes.size() / 2] ^= 4;
  std::ofstream(file, std::ios::binary) << bytes;
  const std::string error =
      ErrorOf([&] { ReshardCheckpoint(dir + "/step_1", 3, 3, dir + "/out", nullptr); });
  EXPECT_TRUE(Contains(error, file + ": is damaged")) << error;
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_1"}));
  EXPECT_THROW(ReshardCheckpoint(dir + "/step_1", 4, 3, dir + "/out", nullptr),
               std::invalid_argument);
  EXPECT_THROW(Relayout({}, 0), std::invalid_argument);
}

TEST(ReshardTest, MakesTheParents) {
  const std::string dir = FreshDirectory("parents");
  ASSERT_EQ(Save(Of(1, 1), dir, 1), Strings(1));
  ReshardCheckpoint(dir + "/step_1", 2, 2, dir + "/a/b/step_9/", nullptr);
  EXPECT_EQ(LoadAndCompare(Of(2, 2), dir + "/a/b/step_9", 1), "");
}

}  // namespace
}  // namespace fsdp
