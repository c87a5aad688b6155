#include "trainer/core/read_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/testing/fresh_directory.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;

constexpr int64_t kTebibyte = int64_t{1} << 40;

std::string Put(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

// A file that says it has a TiB and holds `contents`.
std::string PutSparse(const std::string& path, const std::string& contents) {
  Put(path, contents);
  EXPECT_EQ(::truncate(path.c_str(), kTebibyte), 0) << std::strerror(errno);
  return path;
}

int64_t PeakKiB() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(ReadFileText, IsOfAFileOfAtMostSoManyBytes) {
  const std::string dir = FreshDirectory("file"), zero("a\0b", 3);
  const std::string file = Put(dir + "/file", zero), link = dir + "/link";
  fs::create_symlink("file", link);
  for (const std::string& path : {file, link}) {
    EXPECT_EQ(ReadFileText(path, 3).text, zero);
    EXPECT_EQ(ReadFileText(path, 3).why, "");
    EXPECT_EQ(ReadFileText(path, 2).why, "has 3 bytes, the most is 2");
  }
  EXPECT_EQ(ReadFileText(Put(dir + "/empty", ""), 0).why, "");
  const FileText none = ReadFileText(dir + "/none", 1);
  EXPECT_EQ(none.why, "No such file or directory");
  EXPECT_EQ(none.error, ENOENT);
  EXPECT_EQ(ReadFileText(dir, 1).error, EISDIR);
  // More than it said it has: the kernel's files have size 0.
  EXPECT_GT(ReadFileText("/proc/self/status", 1 << 16).text.size(), 100u);
  EXPECT_EQ(ReadFileText("/proc/self/status", 100).why, "has more than 100 bytes");
}

TEST(ReadFileText, IsOfNothingElse) {
  const std::string dir = FreshDirectory("else"), pipe = dir + "/pipe", socket = dir + "/s";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  EXPECT_EQ(ReadFileText(pipe, 10).why, "is a pipe, not a file");
  EXPECT_EQ(ReadFileText("/dev/zero", 10).why, "is a device, not a file");
  fs::create_symlink("/dev/zero", dir + "/zero");
  EXPECT_EQ(ReadFileText(dir + "/zero", 10).why, "is a device, not a file");
  const UniqueFd bound(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const fs::path here = fs::current_path();
  fs::current_path(dir);  // Its name must be short.
  std::strcpy(address.sun_path, "s");
  ASSERT_EQ(::bind(bound.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  fs::current_path(here);
  EXPECT_EQ(ReadFileText(socket, 10).why, "is a socket, not a file");
}

// Reads a text of any size: a hole ends it, and no memory is taken for the size that the file says
// it has.
TEST(ReadFileText, OfAnySizeEndsAtAZeroByte) {
  const std::string dir = FreshDirectory("any");
  const std::string text(3 << 20, 't');
  EXPECT_EQ(ReadFileText(Put(dir + "/text", text), kAnySize).text, text);
  ASSERT_EQ(ReadFileText(Put(dir + "/cut", text + std::string(1, '\0')), kAnySize).why,
            "is damaged: byte 3145728 is zero, and it is a text");
  const int64_t before = PeakKiB();
  const std::string sparse = PutSparse(dir + "/sparse", "{}");
  EXPECT_EQ(ReadFileText(sparse, kAnySize).why, "is damaged: byte 2 is zero, and it is a text");
  EXPECT_EQ(ReadFileText(sparse, 1 << 20).why, "has 1099511627776 bytes, the most is 1048576");
  EXPECT_LT(PeakKiB() - before, 32 << 10);
}

TEST(ReadFileText, WaitsForThoseWhoWriteAPipeAlone) {
  const std::string dir = FreshDirectory("pipe"), pipe = dir + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  const auto read = [&](int64_t most) { return ReadFileText(pipe, most, ReadFrom::kPipeToo); };
  EXPECT_EQ(read(10).why, "is a pipe that nobody writes to");
  // In parts, with pauses, by somebody who comes late.
  const std::string half(100'000, 'h');
  const auto write = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::ofstream out(pipe, std::ios::binary);
    out << half << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    out << half;
  };
  std::thread writer(write);
  EXPECT_EQ(read(200'000).text, half + half);
  writer.join();
  // Whoever writes without end is not heard to the end.
  EXPECT_EQ(ReadFileText("/dev/zero", 1000, ReadFrom::kPipeToo).why, "has more than 1000 bytes");
  const char* const empty = "is empty: nothing was written to it, or it has been read before";
  EXPECT_EQ(ReadFileText("/dev/null", 1000, ReadFrom::kPipeToo).why, empty);
  // Also through a descriptor, as <(...) and /dev/stdin are.
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "key: 1", 6), 6);
  ::close(ends[1]);
  EXPECT_EQ(ReadFileText("/dev/fd/" + std::to_string(ends[0]), 10, ReadFrom::kPipeToo).text,
            "key: 1");
  EXPECT_EQ(ReadFileText("/dev/fd/" + std::to_string(ends[0]), 10, ReadFrom::kPipeToo).why, empty);
  ::close(ends[0]);
}

TEST(FileBlocks, AreAllBytesButThoseOfHoles) {
  const std::string dir = FreshDirectory("blocks");
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i) + "\n";
  FileBlocks blocks(Put(dir + "/file", text));
  EXPECT_EQ(blocks.bytes(), std::ssize(text));
  std::string got;
  for (std::string_view block = blocks.Next(); !block.empty(); block = blocks.Next()) {
    got += block;
    EXPECT_EQ(blocks.skipped(), 0);
  }
  EXPECT_TRUE(got == text);

  // A text, a hole, a text.
  const std::string path = PutSparse(dir + "/sparse", text);
  std::ofstream(path, std::ios::binary | std::ios::app) << "end";
  FileBlocks sparse(path);
  int64_t bytes = 0, taken = 0;
  std::string last;
  for (std::string_view block = sparse.Next(); !block.empty(); block = sparse.Next()) {
    ++taken;
    bytes += std::ssize(block) + sparse.skipped();
    last = block;
  }
  EXPECT_EQ(bytes, kTebibyte + 3);
  EXPECT_LT(taken, 100);
  EXPECT_TRUE(last.ends_with("end"));
  FileBlocks empty(Put(dir + "/empty", ""));
  EXPECT_EQ(empty.Next(), "");

  for (const auto& [name, why] : {std::pair(dir, "cannot be read: Is a directory"),
                                  std::pair(std::string("/dev/zero"), "is a device, not a file")}) {
    try {
      FileBlocks(std::string(name));
      ADD_FAILURE() << name;
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.what(), name + ": " + why);
    }
  }
}

}  // namespace
}  // namespace fsdp
