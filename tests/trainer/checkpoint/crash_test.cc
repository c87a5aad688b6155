// A save that dies, at every system call in turn and at random moments, and a disk that is full.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "tests/testing/everything.h"
#include "tests/testing/kill_at_call.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/core/atomic_file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::CallsApart, testing::FirstCall;  // Three commits try all.
using testing::KillAtCall;

World Of(int world, int shards) {
  World w;
  w.world = world;
  w.shards = shards;
  for (const int step : {1, 2, 3}) w.losses[step] = 1.0 / step;
  return w;
}

bool AllSaved(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) {
    if (error.empty()) continue;
    std::fprintf(stderr, "%s\n", error.c_str());
    return false;
  }
  return true;
}

// The checkpoint that a run would find now, or what is wrong with it.
struct Found {
  int64_t step = -1;
  std::string error;
};
Found FindAndLoad(const World& world, const std::string& dir) {
  if (fs::exists(dir + "/best") && !FindBestCheckpoint(dir)) return {-1, "best names none"};
  const auto path = FindLatestCheckpoint(dir);
  if (!path) return {-1, "there is no checkpoint"};
  const int64_t step = ReadCheckpointMeta(*path).step;
  return {step, LoadAndCompare(world, *path, static_cast<uint64_t>(step))};
}

// Each case is a save onto a directory that already holds something; it is killed before its first
// system call, its second, and so on until it comes to its end; by a run at one in three.
void KillEverywhere(const std::string& name, const std::function<void(const std::string&)>& before,
                    int64_t step, const std::vector<int64_t>& allowed) {
  const World world = Of(1, 1);
  int count = FirstCall(), found_new = 0, leftovers = 0;
  for (bool killed = true; killed; count += CallsApart()) {
    ASSERT_LT(count, 5000);
    const std::string dir = FreshDirectory(name);
    before(dir);
    killed = KillAtCall(count, [&] { return AllSaved(Save(world, dir, step, /*keep_last=*/1)); });
    ASSERT_FALSE(::testing::Test::HasFailure());
    const Found found = FindAndLoad(world, dir);
    ASSERT_EQ(found.error, "") << "killed at call " << count;
    ASSERT_TRUE(std::find(allowed.begin(), allowed.end(), found.step) != allowed.end())
        << "step " << found.step << " after the kill at call " << count;
    found_new += found.step == step;
    leftovers += fs::exists(dir + "/step_" + std::to_string(step) + ".tmp");
    // The run goes on from there, and what the dead one left is gone.
    ASSERT_TRUE(AllSaved(Save(world, dir, step + 1, /*keep_last=*/1)));
    ASSERT_EQ(ListSorted(dir),
              (std::vector<std::string>{"best", "latest", "step_" + std::to_string(step + 1)}))
        << "after the kill at call " << count;
  }
  std::printf("%s: killed at %d system calls; the new checkpoint counted after %d\n", name.c_str(),
              count - CallsApart(), found_new);
  EXPECT_GT(found_new, 1);
  EXPECT_GT(leftovers, 10);  // The kills did hit the writing.
}

TEST(CrashTest, AtEverySystemCallOfASave) {
  KillEverywhere("kill_new",
                 [](const std::string& dir) { ASSERT_TRUE(AllSaved(Save(Of(1, 1), dir, 1))); }, 2,
                 {1, 2});
}

TEST(CrashTest, AtEverySystemCallOfASaveOverTheSameStep) {
  KillEverywhere("kill_over",
                 [](const std::string& dir) { ASSERT_TRUE(AllSaved(Save(Of(1, 1), dir, 2))); }, 2,
                 {2});
}

// Going back to an older one: a run that starts afterwards finds the newest or that one, nothing is
// gone, and the next attempt succeeds.
TEST(CrashTest, AtEverySystemCallOfGoingBack) {
  const World world = Of(1, 1);
  int count = FirstCall(), back = 0, ahead = 0;
  for (bool killed = true; killed; count += CallsApart()) {
    ASSERT_LT(count, 5000);
    const std::string dir = FreshDirectory("kill_back");
    for (const int step : {1, 2, 3}) ASSERT_TRUE(AllSaved(Save(world, dir, step)));
    killed = KillAtCall(count, [&] { return GoBackTo(dir, 1).size() == 2; });
    ASSERT_FALSE(::testing::Test::HasFailure());
    const Found found = FindAndLoad(world, dir);
    ASSERT_EQ(found.error, "") << "killed at call " << count;
    ASSERT_TRUE(found.step == 1 || found.step == 3) << "killed at call " << count;
    ++(found.step == 1 ? back : ahead);
    GoBackTo(dir, 1);
    ASSERT_EQ(FindAndLoad(world, dir).step, 1);
    for (const int64_t step : {2, 3}) {
      const std::string aside = dir + "/" + StepName(step) + ".aside";
      ASSERT_EQ(LoadAndCompare(world, aside, static_cast<uint64_t>(step)), "")
          << "killed at call " << count;
    }
  }
  std::printf("going back killed at %d system calls; it had taken effect after %d\n",
              count - CallsApart(), back);
  EXPECT_GT(back, 5);
  EXPECT_GT(ahead, 1);
}

// A directory that a reshard was to make is not there, or whole; and the next attempt succeeds.
TEST(CrashTest, AtEverySystemCallOfAReshard) {
  const std::string dir = FreshDirectory("kill_reshard"), out = dir + "/out";
  ASSERT_TRUE(AllSaved(Save(Of(2, 2), dir, 1)));
  const auto reshard = [&] {
    ReshardCheckpoint(dir + "/step_1", 3, 3, out, nullptr);
    return true;
  };
  int count = FirstCall(), whole = 0, leftovers = 0;
  for (bool killed = true; killed; count += CallsApart()) {
    ASSERT_LT(count, 5000);
    fs::remove_all(out);
    killed = KillAtCall(count, reshard);
    ASSERT_FALSE(::testing::Test::HasFailure());
    leftovers += fs::exists(out + ".fsdp-tmp");
    if (!fs::exists(out)) {
      ASSERT_TRUE(reshard()) << "after the kill at call " << count;
    } else {
      ++whole;
    }
    ASSERT_EQ(LoadAndCompare(Of(3, 3), out, 1), "") << "killed at call " << count;
    ASSERT_EQ(ListSorted(dir), (std::vector<std::string>{"best", "latest", "out", "step_1"}));
  }
  std::printf("a reshard killed at %d system calls; it was whole after %d\n", count - CallsApart(),
              whole);
  EXPECT_GT(whole, 1);
  EXPECT_GT(leftovers, 10);
}

// Two ranks save step after step; from time to time the process is killed and another goes on.
TEST(CrashTest, AtRandomMoments) {
  const World world = Of(2, 2);
  const std::string dir = FreshDirectory("random");
  ASSERT_TRUE(AllSaved(Save(world, dir, 1)));
  std::mt19937_64 random(4711);
  int64_t last = 1;
  for (int kills = 0; kills < 40; ++kills) {
    const int64_t from = last + static_cast<int64_t>(random() % 2);  // Or the last one again.
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      if (write(ready[1], "r", 1) != 1) _exit(2);
      for (int64_t step = from;; ++step) {
        if (!AllSaved(Save(world, dir, step, /*keep_last=*/2))) _exit(3);
      }
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
    kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the process ended by itself, status " << status;
    close(ready[0]);
    close(ready[1]);
    const Found found = FindAndLoad(world, dir);
    ASSERT_EQ(found.error, "") << "after kill " << kills;
    ASSERT_GE(found.step, last) << "after kill " << kills;
    last = found.step;
  }
  std::printf("40 kills, %lld steps saved\n", static_cast<long long>(last));
}

// The save of `step` fails on both ranks, and all is as it was before.
bool FailsAndLeavesAll(const World& world, const std::string& dir, int64_t step,
                       const std::string& why) {
  const std::vector<std::string> names = ListSorted(dir);
  const std::string latest = ReadWholeFile(dir + "/latest");
  for (const std::string& error : Save(world, dir, step, /*keep_last=*/1)) {
    if (error.find("the checkpoint was not saved: rank ") == std::string::npos ||
        error.find(why) == std::string::npos) {
      std::fprintf(stderr, "want '%s': %s\n", why.c_str(), error.c_str());
      return false;
    }
  }
  return ListSorted(dir) == names && ReadWholeFile(dir + "/latest") == latest &&
         FindAndLoad(world, dir).error.empty();
}

TEST(FullDiskTest, AFileThatMayNotGrow) {
  const std::string dir = FreshDirectory("limit");
  const World world = Of(2, 2);
  ASSERT_TRUE(AllSaved(Save(world, dir, 1)));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const bool as_before = FailsAndLeavesAll(world, dir, 2, "File too large");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(as_before);
  EXPECT_TRUE(AllSaved(Save(world, dir, 2)));
}

void WriteTo(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY);
  if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(77);
  close(fd);
}

// A file system of 1 MiB in a mount namespace of a process's own. Where the machine does not allow
// that, the test above is all there is, and this one says so.
TEST(FullDiskTest, AFileSystemOfOneMebibyte) {
  const std::string dir = FreshDirectory("tiny");
  const pid_t pid = fork();
  if (pid == 0) {
    const uid_t uid = getuid();
    const gid_t gid = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(77);
    WriteTo("/proc/self/setgroups", "deny");
    WriteTo("/proc/self/uid_map", "0 " + std::to_string(uid) + " 1");
    WriteTo("/proc/self/gid_map", "0 " + std::to_string(gid) + " 1");
    if (mount("tmpfs", dir.c_str(), "tmpfs", 0, "size=1m") != 0) _exit(77);
    const World world = Of(2, 2);
    int64_t step = 1;
    // About 90 KiB each: some fit.
    while (step < 30 && Save(world, dir, step)[0].empty()) ++step;
    if (step < 3 || step == 30) _exit(3);
    if (FindAndLoad(world, dir).step != step - 1) _exit(4);
    if (!FailsAndLeavesAll(world, dir, step, "No space left on device")) _exit(5);
    fs::remove_all(dir + "/step_1");
    if (!AllSaved(Save(world, dir, step))) _exit(6);
    if (FindAndLoad(world, dir).step != step) _exit(7);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no file system may be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace fsdp
