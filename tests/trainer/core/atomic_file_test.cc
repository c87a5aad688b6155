#include "trainer/core/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/full_disk.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;

std::vector<std::string> ListSorted(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string ErrorOf(const std::string& path) {
  return testing::ErrorOf([&] { WriteAtomicFile(path, "new"); }, "no error");
}

void Put(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

TEST(AtomicFile, ReplacesAndLeavesNothingElse) {
  const std::string dir = FreshDirectory("whole"), path = dir + "/a.json";
  WriteAtomicFile(path, "one");
  EXPECT_EQ(ReadWholeFile(path), "one");
  const std::string two("\0two\n", 5);
  WriteAtomicFile(path, two);
  EXPECT_EQ(ReadWholeFile(path), two);
  WriteAtomicFile(path, "");
  EXPECT_EQ(ReadWholeFile(path), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), fs::directory_iterator()), 1);
}

TEST(AtomicFile, FullDiskLeavesTheOldFileWhole) {
  const std::string dir = FreshDirectory("full"), path = dir + "/a.json";
  WriteAtomicFile(path, "old");
  std::string error;
  {
    const FullDisk full(1000);
    try {
      WriteAtomicFile(path, std::string(2000, 'x'));
    } catch (const CheckpointError& e) {
      error = e.what();
    }
  }
  EXPECT_EQ(error, path + ": cannot be written: File too large");
  EXPECT_EQ(ReadWholeFile(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), fs::directory_iterator()), 1);
}

TEST(AtomicFile, ErrorsNamePathAndReason) {
  const std::string dir = FreshDirectory("errors");
  const auto message = [](auto&& call) -> std::string {
    return testing::ErrorOf(call, "no error");
  };
  EXPECT_EQ(message([&] { WriteAtomicFile(dir + "/no/a", "x"); }),
            dir + "/no/a: cannot be written: No such file or directory");
  fs::create_directory(dir + "/sub");
  EXPECT_EQ(message([&] { WriteAtomicFile(dir + "/sub", "x"); }),
            dir + "/sub: is a directory: give the name of a file");
  EXPECT_EQ(ListSorted(dir), (std::vector<std::string>{"sub"}));
  EXPECT_EQ(message([&] { ReadWholeFile(dir + "/none"); }),
            dir + "/none: cannot be read: No such file or directory");
}

TEST(AtomicFile, FollowsLinksAndLeavesThem) {
  const std::string dir = FreshDirectory("links");
  fs::create_directories(dir + "/far/away");
  Put(dir + "/far/away/file", "old");
  fs::create_symlink("far/away", dir + "/near");        // Relative, to a directory.
  fs::create_symlink("near/file", dir + "/one");        // Relative, to a file.
  fs::create_symlink(dir + "/one", dir + "/two");       // Absolute, to a link.
  fs::create_symlink("far/nothing", dir + "/dangles");  // To what is not there yet.
  WriteAtomicFile(dir + "/two", "new");
  WriteAtomicFile(dir + "/dangles", "made");
  EXPECT_TRUE(fs::is_symlink(dir + "/two") && fs::is_symlink(dir + "/one"));
  EXPECT_TRUE(fs::is_symlink(dir + "/dangles"));
  EXPECT_EQ(ReadWholeFile(dir + "/far/away/file"), "new");
  EXPECT_EQ(ReadWholeFile(dir + "/far/nothing"), "made");
  EXPECT_EQ(ListSorted(dir), (std::vector<std::string>{"dangles", "far", "near", "one", "two"}));
  EXPECT_EQ(ListSorted(dir + "/far/away"), (std::vector<std::string>{"file"}));

  fs::create_symlink("b", dir + "/a");
  fs::create_symlink("a", dir + "/b");
  EXPECT_EQ(ErrorOf(dir + "/a"), dir + "/a: cannot be written: Too many levels of symbolic links");
  fs::create_symlink("none/file", dir + "/c");
  EXPECT_EQ(ErrorOf(dir + "/c"), dir + "/none/file: cannot be written: No such file or directory");
}

TEST(AtomicFile, WritesToDevicesAndPipesWhereAskedToAndLeavesThem) {
  const std::string dir = FreshDirectory("nodes"), pipe = dir + "/pipe";
  const auto type = [](const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
    return status.st_mode & S_IFMT;
  };
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  fs::create_symlink("pipe", dir + "/to_pipe");
  for (const std::string& path : {pipe, dir + "/to_pipe"}) {
    std::string read;
    std::thread reader([&] { read = ReadFileText(pipe, kMostTextBytes, ReadFrom::kPipeToo).text; });
    const std::string page(200'000, 'p');  // More than a pipe holds.
    EXPECT_EQ(ErrorOf(path), path + ": is a pipe, not a file: remove it");
    WriteAtomicFile(path, page, WriteTo::kPipeToo);
    reader.join();
    EXPECT_EQ(read, page);
    EXPECT_EQ(type(pipe), S_IFIFO);
  }
  std::vector<std::string> names = {"pipe", "to_pipe"};

  // A double of the null device, for who may make one: the real one is not put at risk.
  const std::string null = dir + "/null", disk = dir + "/disk";
  if (::mknod(null.c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0) {
    names.insert(names.begin(), "null");
    if (std::ofstream(null).is_open()) {  // Or the file system has no devices.
      EXPECT_EQ(ErrorOf(null), null + ": is a device, not a file: remove it");
      WriteAtomicFile(null, "gone", WriteTo::kPipeToo);
      EXPECT_EQ(type(null), S_IFCHR);
    }
  }
  if (::mknod(disk.c_str(), S_IFBLK | 0666, makedev(1, 0)) == 0) {
    names.insert(names.begin(), "disk");
    EXPECT_EQ(ErrorOf(disk), disk + ": is a block device: give the name of a file");
    EXPECT_EQ(type(disk), S_IFBLK);
  }
  EXPECT_EQ(ListSorted(dir), names);  // Nothing beside them.
}

TEST(AtomicFile, RefusesASocket) {
  const std::string dir = FreshDirectory("socket");
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Its name must be short.
  const fs::path here = fs::current_path();
  fs::current_path(dir);
  std::strcpy(address.sun_path, "s");
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(ErrorOf("s"), "s: is a socket: give the name of a file");
  EXPECT_TRUE(fs::is_socket("s"));
  fs::current_path(here);
  ::close(fd);
}

// The name beside a file is nobody's but ours, and even so nothing there is written to.
TEST(AtomicFile, TouchesNothingOfOthersBesideIt) {
  const std::string dir = FreshDirectory("beside"), path = dir + "/page.html";
  const std::string beside = path + kUnfinishedSuffix, other = dir + "/other";
  Put(path + ".tmp", "a user's");
  Put(other, "a user's");
  WriteAtomicFile(path, "page");
  EXPECT_EQ(ReadWholeFile(path + ".tmp"), "a user's");

  fs::create_symlink("other", beside);
  EXPECT_EQ(ErrorOf(path), beside + ": is in the way, and no file that was left here: remove it");
  fs::remove(beside);
  ASSERT_EQ(::mkfifo(beside.c_str(), 0666), 0);
  EXPECT_NE(ErrorOf(path).find("is in the way"), std::string::npos);
  fs::remove(beside);
  fs::create_hard_link(other, beside);  // As good as left: the name is removed, not its contents.
  WriteAtomicFile(path, "again");
  EXPECT_EQ(ReadWholeFile(other), "a user's");

  Put(beside, "half a page of one that died");
  WriteAtomicFile(path, "whole");
  EXPECT_EQ(ReadWholeFile(path), "whole");
  EXPECT_EQ(ListSorted(dir), (std::vector<std::string>{"other", "page.html", "page.html.tmp"}));

  AtomicFile first(path);
  first.Append("first");
  EXPECT_EQ(ErrorOf(path), beside + ": is being written by another process");
  first.Commit();
  EXPECT_EQ(ReadWholeFile(path), "first");
}

TEST(AtomicFile, MakesDirectories) {
  const std::string dir = FreshDirectory("make");
  CreateDirectories(dir + "/a/b/../c/d/");
  EXPECT_TRUE(fs::is_directory(dir + "/a/c/d"));
  CreateDirectories(dir + "/a/c");  // There already.
  Put(dir + "/file", "");
  for (const std::string& path : {dir + "/file", dir + "/file/a"}) {
    try {
      CreateDirectories(path);
      ADD_FAILURE() << path;
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.what(), path + ": cannot be made: Not a directory");
    }
  }
  fs::create_symlink("/gone", dir + "/dangling");
  fs::create_symlink("loop", dir + "/loop");
  for (const auto& [path, why] : {std::pair(dir + "/dangling", "it is a link that leads nowhere"),
                                  std::pair(dir + "/loop", "Too many levels of symbolic links")}) {
    for (const std::string& below : {std::string(), std::string("/a/b")}) {
      try {
        CreateDirectories(path + below);
        ADD_FAILURE() << path + below;
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.what(), path + ": cannot be made: " + why);
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
