#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "trainer/core/atomic_file.h"

namespace fsdp {
namespace {

class FileLockTest : public ::testing::Test {
 protected:
  UniqueFd Open(int flags = O_RDWR | O_CREAT) const {
    UniqueFd file(::open(path_.c_str(), flags | O_CLOEXEC, 0666));
    EXPECT_TRUE(file.open());
    return file;
  }
  const std::string path_ = ::testing::TempDir() + "/lock";
};

TEST_F(FileLockTest, SharedOnesGoTogether) {
  const UniqueFd a = Open(), b = Open(), c = Open();
  EXPECT_EQ(TryLock(a, LockMode::kShared), LockResult::kHeld);
  EXPECT_EQ(TryLock(b, LockMode::kShared), LockResult::kHeld);
  EXPECT_EQ(TryLock(c, LockMode::kExclusive), LockResult::kBusy);
}

TEST_F(FileLockTest, AnExclusiveOneIsAloneUntilItIsClosed) {
  UniqueFd a = Open();
  const UniqueFd b = Open();
  EXPECT_EQ(TryLock(a, LockMode::kExclusive), LockResult::kHeld);
  EXPECT_EQ(TryLock(b, LockMode::kShared), LockResult::kBusy);
  EXPECT_EQ(TryLock(b, LockMode::kExclusive), LockResult::kBusy);
  UniqueFd moved = std::move(a);
  EXPECT_EQ(TryLock(b, LockMode::kExclusive), LockResult::kBusy);
  moved.Close();
  EXPECT_EQ(TryLock(b, LockMode::kExclusive), LockResult::kHeld);
}

TEST_F(FileLockTest, SaysWhyThereIsNone) {
  Open();
  const UniqueFd path = Open(O_PATH);
  EXPECT_EQ(TryLock(path, LockMode::kExclusive), LockResult::kNone);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace fsdp
