// A disk that refuses one call of a save, each in turn, or all from one on: the save comes to its
// end all the same, or every rank says that it has not and the checkpoint before is there. Which of
// them is in force is, where only what comes behind the new one's name failed, the new one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/file_calls.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "tests/trainer/checkpoint/tiny_saves.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::Answer;
using testing::FileCall;
using testing::FileWatch;
using Kind = FileCall::Kind;

std::string TestDirectory(const std::string& name) {
  return fs::canonical(FreshDirectory("file_faults_" + name));
}

struct Fault {
  const char* name;
  std::vector<Kind> calls;  // That it can happen to.
  Answer answer;
  bool for_good;  // All such calls from then on.
};

const std::vector<Kind> kAll = {Kind::kOpen,   Kind::kWrite,    Kind::kResize,
                                Kind::kSync,   Kind::kClose,    Kind::kMkdir,
                                Kind::kRename, Kind::kExchange, Kind::kUnlink};
const std::vector<Kind> kTakesSpace = {Kind::kOpen,  Kind::kWrite,  Kind::kResize,  Kind::kSync,
                                       Kind::kMkdir, Kind::kRename, Kind::kExchange};

std::vector<Fault> Faults() {
  return {
      {"EIO once", kAll, {.error = EIO}, false},
      {"EIO for good", kAll, {.error = EIO}, true},
      {"ENOSPC once", kTakesSpace, {.error = ENOSPC}, false},
      {"ENOSPC for good", kTakesSpace, {.error = ENOSPC}, true},
      {"short write", {Kind::kWrite}, {.half = true}, false},
      {"short writes", {Kind::kWrite}, {.half = true}, true},
      {"EINTR", {Kind::kWrite}, {.error = EINTR}, false},
      {"EMFILE", {Kind::kOpen}, {.error = EMFILE}, true},
      {"no fallocate", {Kind::kResize}, {.error = EOPNOTSUPP}, false},
      {"EROFS for good", kTakesSpace, {.error = EROFS}, true},
  };
}

// Does `work` below `root` with the fault at its call number `at` of those that it can happen to.
// False where there are not so many. `unsynced`: an fsync was among what failed.
bool With(const Fault& fault, int at, const std::string& root,
          const std::function<Answer(const FileCall&)>& file_system,
          const std::function<void()>& work, std::string* where, bool* unsynced) {
  int seen = 0;
  const FileWatch watch(
      root,
      [&](const FileCall& call) {
        const bool can =
            std::find(fault.calls.begin(), fault.calls.end(), call.kind) != fault.calls.end();
        const int number = can ? seen++ : -1;
        if (number == at) {
          *where = std::string(fault.name) + " at call " + std::to_string(at) + ", " +
                   testing::NameOf(call.kind) + " of " + call.path;
        }
        const bool now = fault.for_good ? number >= at : number == at;
        *unsynced |= now && call.kind == Kind::kSync;
        return now ? fault.answer : file_system(call);
      },
      nullptr);
  work();
  return seen > at;
}

using testing::CallsApart, testing::FirstCall;  // Three commits try all.

class FileFaults : public ::testing::TestWithParam<TinySave> {};

TEST_P(FileFaults, LeaveOneCheckpointInForce) {
  const TinySave& save = GetParam();
  const std::string root = TestDirectory("disk"), checkpoints = root + "/run/checkpoints";
  const auto file_system = [&](const FileCall& call) { return save.FileSystem(call); };
  int injected = 0, completed = 0, refused = 0, found_new = 0;
  for (const Fault& fault : Faults()) {
    for (int at = FirstCall();; at += CallsApart()) {
      ASSERT_LT(at, 1000);
      fs::remove_all(root + "/run");
      {
        const FileWatch no_sync(root, nullptr, nullptr);
        save.Before(checkpoints);
      }
      std::vector<std::string> errors;
      std::string where;
      bool unsynced = false;
      const auto run = [&] { errors = save.Run(checkpoints); };
      if (!With(fault, at, root, file_system, run, &where, &unsynced)) break;
      ++injected;
      const FileWatch no_sync(root, nullptr, nullptr);
      std::string error;
      const auto found = FindSaved(save, checkpoints, error);
      ASSERT_EQ(error, "") << where;
      const bool is_new = found == save.saved;
      const bool is_old = save.before.empty() ? !found : found == save.before.back();
      if (std::all_of(errors.begin(), errors.end(), [](auto& e) { return e.empty(); })) {
        ++completed;
        ASSERT_TRUE(is_new && !unsynced) << where;
      } else {
        ++refused;
        for (const std::string& said : errors) {
          ASSERT_TRUE(said.starts_with("the checkpoint was not saved: rank ")) << where << said;
          ASSERT_NE(said.find(std::strerror(fault.answer.error)), std::string::npos)
              << where << ": " << said;
        }
        // It may fail behind the point where it counts: then nothing else has gone.
        ASSERT_TRUE(is_old || is_new) << where;
        for (const Saved& one : save.before) {
          if (one.step == save.saved.step) continue;
          const std::string path = checkpoints + "/" + StepName(one.step);
          ASSERT_EQ(LoadAndCompare(save.world, path, one.salt), "") << where;
        }
        found_new += is_new;
      }
      ASSERT_EQ(NextSave(save, checkpoints), "") << where;
      ASSERT_EQ(ListSorted(checkpoints),
                (std::vector<std::string>{"latest", "step_" + std::to_string(save.saved.step + 1)}))
          << where;
    }
  }
  std::printf("%s: %d faults: %d saves completed, %d refused, %d of them with the new one there\n",
              save.name.c_str(), injected, completed, refused, found_new);
  // But for the first, and in place of one of its step, only where the sync of `latest` failed.
  if (!save.before.empty() && save.before.back().step != save.saved.step) {
    EXPECT_LT(found_new, refused / 4);
  }
  EXPECT_GT(completed, 5);
  EXPECT_GT(refused, 20);
}

std::string NameOf(const ::testing::TestParamInfo<TinySave>& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    if (c == ' ') c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Saves, FileFaults, ::testing::ValuesIn(TinySaves()), NameOf);

TEST(FileFaultsOfAWriter, LeaveAWholeDirectoryOrNone) {
  const std::string root = TestDirectory("disk"), out = root + "/made/out";
  {
    const FileWatch no_sync(root, nullptr, nullptr);
    for (const std::string& error : Save(TinyWorld(2), root + "/from", 1)) ASSERT_EQ(error, "");
  }
  const auto reshard = [&] { ReshardCheckpoint(root + "/from/step_1", 3, 3, out, nullptr); };
  const auto file_system = [](const FileCall&) { return Answer(); };
  int injected = 0, completed = 0;
  for (const Fault& fault : Faults()) {
    for (int at = FirstCall();; at += CallsApart()) {
      ASSERT_LT(at, 1000);
      fs::remove_all(root + "/made");
      std::string said, where;
      bool unsynced = false;
      const auto attempt = [&] {
        try {
          reshard();
        } catch (const CheckpointError& error) {
          said = error.what();
        }
      };
      if (!With(fault, at, root, file_system, attempt, &where, &unsynced)) break;
      ++injected;
      const FileWatch no_sync(root, nullptr, nullptr);
      if (said.empty()) {
        ++completed;
        ASSERT_TRUE(fs::exists(out) && !unsynced) << where;
      } else {
        ASSERT_NE(said.find(std::strerror(fault.answer.error)), std::string::npos) << where << said;
      }
      // Where the sync of what holds it failed, it is there, and whole.
      if (!fs::exists(out)) {
        ASSERT_NO_THROW(reshard()) << where;
      }
      ASSERT_EQ(LoadAndCompare(TinyWorld(3), out, 1), "") << where;
      ASSERT_EQ(ListSorted(root + "/made"), (std::vector<std::string>{"out"})) << where;
    }
  }
  std::printf("reshard: %d faults: %d completed\n", injected, completed);
  EXPECT_GT(completed, 5);
}

}  // namespace
}  // namespace fsdp
