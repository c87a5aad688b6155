#include "trainer/loop/run_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <thread>

#include "tests/testing/error_of.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr milliseconds kAtOnce{0}, kForEver{60000};

class RunLockTest : public ::testing::Test {
 protected:
  RunLockTest() {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  std::string Refusal() const {
    return testing::ErrorOf([&] { const RunLock lock(directory_, kAtOnce); });
  }
  const std::string directory_ = ::testing::TempDir() + "/run_lock";
  const std::string file_ = directory_ + "/.lock";
};

int64_t Changed(const std::string& path) {
  struct stat status;
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec;
}

TEST_F(RunLockTest, TheSecondIsToldWhoIsFirstAndTouchesNothing) {
  const RunLock first(directory_, kAtOnce);
  EXPECT_EQ(first.missing(), "");
  const std::string holder = ReadWholeFile(file_);
  const int64_t directory = Changed(directory_), file = Changed(file_);
  const std::string refusal = Refusal();
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  EXPECT_NE(refusal.find("process " + std::to_string(getpid()) + " on " + host + ", started 2"),
            std::string::npos)
      << refusal;
  EXPECT_EQ(ReadWholeFile(file_), holder);
  EXPECT_EQ(Changed(directory_), directory);
  EXPECT_EQ(Changed(file_), file);
}

TEST_F(RunLockTest, EndsWithItsObject) {
  { const RunLock first(directory_, kAtOnce); }
  EXPECT_EQ(ReadWholeFile(file_), "");  // Names nobody.
  EXPECT_EQ(Refusal(), "");
}

// As the locks that belong to a process would be.
TEST_F(RunLockTest, IsNotGivenAwayByWhoeverClosesTheFile) {
  const RunLock first(directory_, kAtOnce);
  close(open(file_.c_str(), O_RDWR));
  EXPECT_NE(Refusal(), "");
}

TEST_F(RunLockTest, EndsWithItsProcess) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const RunLock lock(directory_, kAtOnce);
    [[maybe_unused]] const ssize_t told = write(ready[1], "x", 1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_NE(Refusal().find("process " + std::to_string(child) + " on "), std::string::npos);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  { const RunLock lock(directory_, kForEver); }  // Whether it is reaped or not.
  waitpid(child, nullptr, 0);
}

TEST_F(RunLockTest, WaitsForOneThatIsAboutToEnd) {
  auto first = std::make_unique<RunLock>(directory_, kAtOnce);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    first.reset();
  });
  EXPECT_NO_THROW(RunLock(directory_, kForEver));
  later.join();
}

TEST_F(RunLockTest, StopsWaitingWhenToldTo) {
  const RunLock first(directory_, kAtOnce);
  EXPECT_THROW(RunLock(directory_, kForEver, [] { return true; }), CheckpointError);
}

TEST_F(RunLockTest, NamesAFileThatCannotBeMade) {
  try {
    const RunLock lock(directory_ + "/nowhere", kAtOnce);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find(directory_ + "/nowhere/.lock: "), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp
