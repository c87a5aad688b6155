#include "tests/testing/power_cut.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <random>
#include <set>
#include <string>

namespace fsdp::testing {
namespace {

namespace fs = std::filesystem;

void Write(int fd, const std::string& text) {
  ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void SyncDirectory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::fsync(fd), 0);
  ::close(fd);
}

class PowerCutTest : public ::testing::Test {
 protected:
  PowerCutTest() {
    fs::remove_all(::testing::TempDir() + "/disk");
    fs::create_directories(::testing::TempDir() + "/disk");
    root_ = fs::canonical(::testing::TempDir() + "/disk");
  }
  // Contents of `name` in all states of the end; "-" where it is not there.
  std::set<std::string> Contents(const RecordedDisk& disk, const std::string& name) {
    std::set<std::string> all;
    for (const DiskState& state : disk.After(disk.changes(), 200, random_)) {
      const auto at = state.find(name);
      all.insert(at == state.end() ? "-" : at->second.value_or("a directory"));
    }
    return all;
  }
  using Set = std::set<std::string>;

  std::string root_;
  std::mt19937_64 random_{1};
};

TEST_F(PowerCutTest, UnsyncedContentsAreLostTornOrZeros) {
  ::close(::open((root_ + "/a").c_str(), O_WRONLY | O_CREAT, 0666));
  RecordedDisk disk(root_);
  const int fd = ::open((root_ + "/a").c_str(), O_WRONLY);
  Write(fd, "ab");
  EXPECT_EQ(Contents(disk, "a"), (Set{"", "a", "ab", std::string(2, '\0')}));
  ::fsync(fd);
  EXPECT_EQ(Contents(disk, "a"), (Set{"ab"}));
  ::close(fd);
}

// A file's own sync says nothing of its name, nor the directory's of its contents.
TEST_F(PowerCutTest, NamesAndContentsAreTwoThings) {
  RecordedDisk disk(root_);
  const int fd = ::open((root_ + "/a").c_str(), O_WRONLY | O_CREAT, 0666);
  Write(fd, "a");
  ::fsync(fd);
  EXPECT_EQ(Contents(disk, "a"), (Set{"-", "a"}));
  SyncDirectory(root_);
  EXPECT_EQ(Contents(disk, "a"), (Set{"a"}));
  ::close(fd);
}

TEST_F(PowerCutTest, ChangesOfNamesAreUndoneInAnyOrder) {
  ASSERT_EQ(::mkdir((root_ + "/a").c_str(), 0777), 0);
  ::close(::open((root_ + "/a/in_a").c_str(), O_WRONLY | O_CREAT, 0666));
  ASSERT_EQ(::mkdir((root_ + "/b").c_str(), 0777), 0);
  RecordedDisk disk(root_);
  ASSERT_EQ(::renameat2(AT_FDCWD, (root_ + "/a").c_str(), AT_FDCWD, (root_ + "/b").c_str(),
                        RENAME_EXCHANGE),
            0);
  ASSERT_EQ(::unlink((root_ + "/b/in_a").c_str()), 0);
  ASSERT_EQ(std::rename((root_ + "/a").c_str(), (root_ + "/c").c_str()), 0);
  EXPECT_EQ(Contents(disk, "a/in_a"), (Set{"-", ""}));
  EXPECT_EQ(Contents(disk, "b/in_a"), (Set{"-", ""}));
  EXPECT_EQ(Contents(disk, "c"), (Set{"-", "a directory"}));
  SyncDirectory(root_);  // Not what is in b.
  EXPECT_EQ(Contents(disk, "a"), (Set{"-"}));
  EXPECT_EQ(Contents(disk, "c"), (Set{"a directory"}));
  EXPECT_EQ(Contents(disk, "b/in_a"), (Set{"-", ""}));
}

TEST_F(PowerCutTest, ADirectoryIsLaidOut) {
  const DiskState state = {{"a", std::nullopt}, {"a/b", "text"}, {"c", ""}};
  LayOut(state, root_ + "/out");
  const RecordedDisk disk(root_ + "/out");
  std::mt19937_64 random;
  const std::vector<DiskState> states = disk.After(0, 10, random);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0], state);
}

}  // namespace
}  // namespace fsdp::testing
