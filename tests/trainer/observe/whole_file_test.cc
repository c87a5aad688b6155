#include "trainer/observe/whole_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/trainer/observe/full_disk.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

std::string FreshDirectory(const std::string& name) {
  const fs::path dir = fs::path(::testing::TempDir()) / name;
  fs::remove_all(dir);
  fs::create_directories(dir);
  return dir;
}

TEST(WholeFile, ReplacesAndLeavesNothingElse) {
  const std::string dir = FreshDirectory("whole"), path = dir + "/a.json";
  WriteWholeFile(path, "one");
  EXPECT_EQ(ReadWholeFile(path), "one");
  const std::string two("\0two\n", 5);
  WriteWholeFile(path, two);
  EXPECT_EQ(ReadWholeFile(path), two);
  WriteWholeFile(path, "");
  EXPECT_EQ(ReadWholeFile(path), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), fs::directory_iterator()), 1);
}

TEST(WholeFile, FullDiskLeavesTheOldFileWhole) {
  const std::string dir = FreshDirectory("full"), path = dir + "/a.json";
  WriteWholeFile(path, "old");
  std::string error;
  {
    const FullDisk full(1000);
    try {
      WriteWholeFile(path, std::string(2000, 'x'));
    } catch (const CheckpointError& e) {
      error = e.what();
    }
  }
  EXPECT_EQ(error, path + ".tmp: cannot be written: File too large");
  EXPECT_EQ(ReadWholeFile(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), fs::directory_iterator()), 1);
}

TEST(WholeFile, ErrorsNamePathAndReason) {
  const std::string dir = FreshDirectory("errors");
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message([&] { WriteWholeFile(dir + "/no/a", "x"); }),
            dir + "/no/a.tmp: cannot be written: No such file or directory");
  fs::create_directory(dir + "/sub");
  EXPECT_EQ(message([&] { WriteWholeFile(dir + "/sub", "x"); }),
            dir + "/sub: cannot be replaced: Is a directory");
  EXPECT_FALSE(fs::exists(dir + "/sub.tmp"));
  EXPECT_EQ(message([&] { ReadWholeFile(dir + "/none"); }),
            dir + "/none: cannot be read: No such file or directory");
}

}  // namespace
}  // namespace fsdp
