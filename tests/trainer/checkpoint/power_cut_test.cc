// A save during which the power goes, at every point of it and with all that a disk may then have
// lost: what a run finds is the checkpoint it had or the new one, whole; once the save has
// returned, the new one.
#include "tests/testing/power_cut.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <random>
#include <string>

#include "tests/testing/everything.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "tests/trainer/checkpoint/tiny_saves.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_writer.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::DiskState;
using testing::FileCall;
using testing::FileWatch;
using testing::LayOut;
using testing::RecordedDisk;

// At each point, beside those that are not random: of another draw at another commit.
uint64_t Seed() { return 20260801 + testing::Part(180); }
int RandomStates() { return testing::Everything() ? 40 : 12; }

std::string TestDirectory(const std::string& name) {
  return fs::canonical(FreshDirectory("power_cut_" + name));
}

class PowerCut : public ::testing::TestWithParam<TinySave> {};

TEST_P(PowerCut, LeavesAWholeCheckpoint) {
  const TinySave& save = GetParam();
  const std::string root = TestDirectory("disk"), after = TestDirectory("after");
  {
    const FileWatch no_sync(root, nullptr, nullptr);
    save.Before(root + "/run/checkpoints");
  }
  RecordedDisk disk(root, [&](const FileCall& call) { return save.FileSystem(call); });
  for (const std::string& error : save.Run(root + "/run/checkpoints")) ASSERT_EQ(error, "");
  disk.Stop();

  std::mt19937_64 random(Seed());
  const FileWatch no_sync(after, nullptr, nullptr);
  const std::string checkpoints = after + "/run/checkpoints";
  int states = 0, found_old = 0, found_new = 0;
  for (size_t count = 0; count <= disk.changes(); ++count) {
    for (const DiskState& state : disk.After(count, RandomStates(), random)) {
      LayOut(state, after);
      std::string error;
      const auto found = FindSaved(save, checkpoints, error);
      const std::string where = "state " + std::to_string(states) + ", cut behind change " +
                                std::to_string(count) + " of " + std::to_string(disk.changes()) +
                                (count > 0 ? ": " + disk.Describe(count - 1) : "");
      ASSERT_EQ(error, "") << where;
      const bool is_new = found == save.saved;
      const bool is_old = save.before.empty() ? !found : found == save.before.back();
      ASSERT_TRUE(is_new || (is_old && count < disk.changes())) << where;
      if (states++ % 17 == 0) {
        ASSERT_EQ(NextSave(save, checkpoints), "") << where;
      }
      ++(is_new ? found_new : found_old);
    }
  }
  std::printf("%s: seed %llu, %zu points, %d states: the one before in %d, the new one in %d\n",
              save.name.c_str(), static_cast<unsigned long long>(Seed()), disk.changes() + 1,
              states, found_old, found_new);
  EXPECT_GT(found_old, 20);
  EXPECT_GT(found_new, 0);
}

std::string NameOf(const ::testing::TestParamInfo<TinySave>& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    if (c == ' ') c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Saves, PowerCut, ::testing::ValuesIn(TinySaves()), NameOf);

// A directory that a reshard or an import makes is not there, or whole.
TEST(PowerCutOfAWriter, LeavesAWholeDirectoryOrNone) {
  const std::string root = TestDirectory("disk"), after = TestDirectory("after");
  const World from = TinyWorld(2), to = TinyWorld(3);
  const std::string source = root + "/checkpoints/step_1", out = "/made/for/it/out";
  {
    const FileWatch no_sync(root, nullptr, nullptr);
    for (const std::string& error : Save(from, root + "/checkpoints", 1)) ASSERT_EQ(error, "");
  }
  RecordedDisk disk(root);
  ReshardCheckpoint(source, 3, 3, root + out, nullptr);
  disk.Stop();

  std::mt19937_64 random(Seed());
  const FileWatch no_sync(after, nullptr, nullptr);
  int states = 0, whole = 0;
  for (size_t count = 0; count <= disk.changes(); ++count) {
    for (const DiskState& state : disk.After(count, RandomStates(), random)) {
      LayOut(state, after);
      const std::string where = "state " + std::to_string(states) + ", cut behind change " +
                                std::to_string(count) + " of " + std::to_string(disk.changes());
      ASSERT_TRUE(fs::exists(after + out) || count < disk.changes()) << where;
      if (fs::exists(after + out)) {
        ++whole;
      } else if (states % 7 == 0) {
        ASSERT_NO_THROW(ReshardCheckpoint(source, 3, 3, after + out, nullptr)) << where;
      }
      if (fs::exists(after + out)) {
        ASSERT_EQ(LoadAndCompare(to, after + out, 1), "") << where;
      }
      ++states;
    }
  }
  std::printf("reshard: seed %llu, %zu points, %d states: whole in %d\n",
              static_cast<unsigned long long>(Seed()), disk.changes() + 1, states, whole);
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace fsdp
