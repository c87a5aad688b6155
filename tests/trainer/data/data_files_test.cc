#include "trainer/data/data_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"

namespace {

std::function<void()> behind_stat;  // Called once, when the next stat() has its answer.

}  // namespace

// Before libc's.
extern "C" int stat(const char* path, struct stat* out) {
  const int result = ::fstatat(AT_FDCWD, path, out, 0);
  if (behind_stat) std::exchange(behind_stat, nullptr)();
  return result;
}

namespace fsdp {
namespace {

namespace fs = std::filesystem;

class DataFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) /
           ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }

  std::string Write(const std::string& name, const std::string& contents) {
    std::ofstream(dir_ / name, std::ios::binary) << contents;
    return dir_ / name;
  }

  std::string Zip(const std::string& name, const std::string& contents, const char* mode = "wb") {
    const gzFile file = gzopen((dir_ / name).c_str(), mode);
    gzwrite(file, contents.data(), static_cast<unsigned>(contents.size()));
    gzclose(file);
    return dir_ / name;
  }

  // Appends a frame.
  std::string Zstd(const std::string& name, const std::string& contents) {
    std::string frame(ZSTD_compressBound(contents.size()), '\0');
    frame.resize(
        ZSTD_compress(frame.data(), frame.size(), contents.data(), contents.size(), /*level=*/1));
    std::ofstream(dir_ / name, std::ios::binary | std::ios::app) << frame;
    return dir_ / name;
  }

  // The message, without the directory.
  std::string ErrorOf(const std::string& path) {
    try {
      FileContents contents(path);
    } catch (const DataError& error) {
      std::string what = error.what();
      for (size_t at; (at = what.find(dir_.string() + "/")) != std::string::npos;) {
        what.erase(at, dir_.string().size() + 1);
      }
      return what;
    }
    return "no error";
  }

  fs::path dir_;
};

TEST_F(DataFilesTest, PlainFileIsItsBytes) {
  const std::string bytes("a\0\xff\r\n", 5);
  const std::string path = Write("a.txt", bytes);
  FileContents file(path);
  EXPECT_EQ(file.bytes(), bytes);
  const FileContents moved(std::move(file));
  EXPECT_EQ(moved.bytes(), bytes);
  EXPECT_EQ(moved.path(), path);
}

// Linux has a number of mappings for a process, some 65,530, and malloc() takes of these, too.
TEST_F(DataFilesTest, OfManySmallFilesTheLastAreRead) {
  const std::string bytes(2000, 'a');
  const std::string path = Write("a.txt", bytes);
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  const auto before = mappings();
  std::vector<FileContents> files;
  for (int i = 0; i < 20000; ++i) files.emplace_back(path);
  EXPECT_LT(mappings(), before + 18000);
  for (const FileContents& file : files) ASSERT_EQ(file.bytes(), bytes);
  EXPECT_NO_THROW(files.back().CheckIntact());
}

TEST_F(DataFilesTest, GzipIsDecompressedMembersAndAll) {
  std::string text;
  for (int i = 0; i < 400000; ++i) text += std::to_string(i) + " ";  // More than one chunk.
  FileContents file(Zip("a.gz", text));
  EXPECT_EQ(file.bytes(), text);
  EXPECT_EQ(FileContents(std::move(file)).bytes(), text);
  Zip("b.gz", "one ");
  FileContents two(Zip("b.gz", "two", "ab"));
  EXPECT_EQ(two.bytes(), "one two");
  EXPECT_EQ(FileContents(std::move(two)).bytes(), "one two");
}

TEST_F(DataFilesTest, ErrorsNameThePathAndTheCure) {
  EXPECT_EQ(
      ErrorOf(dir_ / "none.txt"),
      "data: none.txt: does not exist (a relative path starts at the working directory, not at "
      "the recipe)");
  EXPECT_EQ(ErrorOf(Write("empty.txt", "")),
            "data: empty.txt: is empty: take it out of data.*.paths, or fill it");
  fs::create_directory(dir_ / "sub");
  EXPECT_EQ(ErrorOf(dir_ / "sub"), "data: sub: is a directory: name its files, or a glob: sub/*");
  ASSERT_EQ(mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(ErrorOf(dir_ / "pipe"), "data: pipe: is not a regular file");
  EXPECT_EQ(ErrorOf(Write("text.gz", "not compressed")),
            "data: text.gz: is not in gzip format: rename it: mv -n text.gz text");
  fs::create_symlink("nowhere", dir_ / "link");
  EXPECT_EQ(ErrorOf(dir_ / "link"), "data: link: is a link to a file that does not exist");
  EXPECT_EQ(ErrorOf(Zip("nothing.gz", "")),
            "data: nothing.gz: is empty when decompressed: take it out of data.*.paths");
}

TEST_F(DataFilesTest, CutOffOrDamagedGzipIsRefused) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += std::to_string(i * 7919);
  const std::string path = Zip("a.gz", text);
  const auto size = fs::file_size(path);
  for (const auto keep : {size - 1, size - 8, size / 2, uintmax_t{20}}) {
    fs::resize_file(path, keep);
    EXPECT_NE(ErrorOf(path).find("a.gz: is damaged or cut off: "), std::string::npos) << keep;
  }
  Zip("a.gz", text);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(size / 2).put('\x5a');
  EXPECT_NE(ErrorOf(path).find("a.gz: is damaged or cut off: "), std::string::npos);
}

TEST_F(DataFilesTest, ZstandardIsDecompressedFramesAndAll) {
  std::string text;
  for (int i = 0; i < 400000; ++i) text += std::to_string(i) + " ";  // More than one chunk.
  const FileContents file(Zstd("a.zst", text));
  EXPECT_EQ(file.bytes(), text);
  text.resize(1 << 20);  // A frame that fills a chunk.
  Zstd("b.zst", text);
  Write("skip", std::string("\x50\x2a\x4d\x18\3\0\0\0abc", 11));  // A frame without contents.
  std::ofstream(dir_ / "b.zst", std::ios::binary | std::ios::app)
      << std::ifstream(dir_ / "skip", std::ios::binary).rdbuf();
  EXPECT_EQ(FileContents(Zstd("b.zst", "two")).bytes(), text + "two");
  EXPECT_EQ(FileContents(dir_ / "b.zst", FileContents::As::kBegin).bytes(),
            text.substr(0, FileContents::kBeginBytes));
  EXPECT_EQ(FileContents(dir_ / "b.zst", FileContents::As::kStored).bytes().substr(0, 4),
            "\x28\xb5\x2f\xfd");
}

TEST_F(DataFilesTest, CutOffOrDamagedZstandardIsRefused) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += std::to_string(i * 7919);
  const std::string path = Zstd("a.zst", text);
  const auto size = fs::file_size(path);
  for (const auto keep : {size - 1, size / 2, uintmax_t{20}, uintmax_t{3}}) {
    fs::resize_file(path, keep);
    EXPECT_EQ(ErrorOf(path), "data: a.zst: is damaged or cut off: it ends inside a frame") << keep;
  }
  fs::remove(path);
  Zstd("a.zst", text);
  std::ofstream(path, std::ios::binary | std::ios::app) << "more";
  EXPECT_EQ(ErrorOf(path), "data: a.zst: is damaged: Unknown frame descriptor");
  EXPECT_EQ(ErrorOf(Write("b.zst", "not compressed")),
            "data: b.zst: is not in Zstandard format: rename it: mv -n b.zst b");
  EXPECT_EQ(ErrorOf(Zstd("nothing.zst", "")),
            "data: nothing.zst: is empty when decompressed: take it out of data.*.paths");
}

TEST_F(DataFilesTest, GlobsAreSortedByBytesInTheOrderOfTheList) {
  for (const char* name : {"b.txt", "B.txt", "a.txt", "a10.txt", "a9.txt", "x.md", "[1].txt"}) {
    Write(name, "x");
  }
  const auto expand = [&](std::vector<std::string> names) {
    for (std::string& name : names) name = dir_ / name;
    std::vector<std::string> out;
    for (const std::string& path : ExpandPaths(names)) out.push_back(fs::path(path).filename());
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(expand({"x.md", "[ab]*.txt"}), (Names{"x.md", "a.txt", "a10.txt", "a9.txt", "b.txt"}));
  EXPECT_EQ(expand({"?.txt"}), (Names{"B.txt", "a.txt", "b.txt"}));
  EXPECT_EQ(expand({"[1].txt"}), (Names{"[1].txt"}));  // A file of that very name.
  EXPECT_EQ(expand({"a.txt", "a.txt"}), (Names{"a.txt", "a.txt"}));
  EXPECT_THROW(expand({"*.bin"}), DataError);
  EXPECT_THROW(expand({"none.txt"}), DataError);
  try {
    expand({"none/*.txt"});
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("/none/*.txt: matches no file"), std::string::npos);
  }
  EXPECT_THROW(expand({}), DataError);
}

// As by a glob: no file is left out for its name.
TEST_F(DataFilesTest, ADirectoryOfTextIsItsFiles) {
  for (const char* name : {"b.txt", "a.jsonl", "c.json", "d", "e.txt.gz", "f.csv", ".hidden.txt"}) {
    Write(name, "x");
  }
  const std::string inside = dir_ / "inside.txt";
  fs::create_directory(inside);
  const auto expand = [&](const std::string& path) {
    std::vector<std::string> out;
    for (const std::string& file : ExpandTextPaths(std::vector{path})) {
      out.push_back(fs::relative(file, dir_));
    }
    return out;
  };
  const std::vector<std::string> all = {"a.jsonl", "b.txt", "c.json", "d", "e.txt.gz", "f.csv"};
  EXPECT_EQ(expand(dir_), all);
  EXPECT_EQ(expand(dir_.string() + "/"), all);
  EXPECT_EQ(expand(dir_.string() + "/[a-f].*"),
            (std::vector<std::string>{"a.jsonl", "b.txt", "c.json", "e.txt.gz", "f.csv"}));
  try {
    ExpandTextPaths(std::vector{inside}, "here");
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()),
              "here: " + inside +
                  ": is a directory without text files (hidden files and its directories are not "
                  "read): name others by a glob");
  }
  Write("inside.txt/z.txt", "x");
  EXPECT_EQ(expand(inside), std::vector<std::string>{"inside.txt/z.txt"});
  // Beside files directories are not read; what is no file is not passed over.
  fs::create_symlink("nowhere", dir_ / "g");
  std::vector<std::string> more = all;
  more.push_back("g");
  EXPECT_EQ(expand(dir_), more);
  EXPECT_EQ(expand(dir_.string() + "/*"), more);
  EXPECT_EQ(expand(dir_.string() + "/*/"), std::vector<std::string>{"inside.txt/z.txt"});
  EXPECT_EQ(ExpandPaths(std::vector{inside}), std::vector{inside});  // As of tokens.
  for (const std::string& url : {std::string("s3://bucket/a.jsonl"), std::string("https://h/*")}) {
    try {
      ExpandTextPaths(std::vector{url}, "here");
      ADD_FAILURE() << url;
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()),
                "here: " + url +
                    ": data from a network is not in this version: copy it to a disk first, and "
                    "name the files");
    }
  }
}

TEST_F(DataFilesTest, HashesUpToAGibibyteWholeAndMoreHereAndThere) {
  const auto flip = [](const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char was = static_cast<char>(file.get());
    file.seekp(at).put(static_cast<char>(was ^ 1));
  };
  const auto hash = [](const std::string& path) { return DescribeFile(FileContents(path)).hash; };
  const std::string small = Write("small", "abc");
  EXPECT_EQ(DescribeFile(FileContents(small)), (DataFile{small, 3, hash(small)}));
  EXPECT_NE(hash(Write("other", "abd")), hash(small));
  EXPECT_EQ(hash(Write("same", "abc")), hash(small));

  // Every byte counts, in 40 MiB as in 3 bytes.
  const std::string whole = Write("whole", "");
  fs::resize_file(whole, 40 << 20);
  const uint64_t before = hash(whole);
  for (const int64_t at :
       {int64_t{0}, int64_t{5000}, int64_t{33'333'333}, int64_t{(40 << 20) - 1}}) {
    flip(whole, at);
    EXPECT_NE(hash(whole), before) << at;
    flip(whole, at);
  }
  EXPECT_EQ(hash(whole), before);

  // A sparse file: what is not written costs nothing.
  const std::string large = Write("large", "");
  const int64_t size = kHashedWhole + 1;
  fs::resize_file(large, static_cast<uintmax_t>(size));
  const uint64_t sampled = hash(large);
  for (const int64_t at : {int64_t{0}, int64_t{4095}, size - 4096, size - 1}) {
    flip(large, at);
    EXPECT_NE(hash(large), sampled) << at;
    flip(large, at);
  }
  flip(large, 5000);  // Between two stretches.
  EXPECT_EQ(hash(large), sampled);
  fs::resize_file(large, static_cast<uintmax_t>(size + 1));
  EXPECT_NE(hash(large), sampled);
}

// The file has 5 pages; it is read in pieces, as sources do.
TEST_F(DataFilesTest, AShortenedFileIsNamedAndKillsNobody) {
  const std::string text(5 * 4096 - 100, 'x');
  for (const size_t left : {size_t{0}, size_t{1}, size_t{4096}, size_t{3 * 4096 + 7},
                            text.size() - 1}) {  // The last loses no page.
    const std::string path = Write("a.txt", text);
    const FileContents file(path);
    file.CheckIntact();
    fs::resize_file(path, left);
    EXPECT_EQ(std::count(file.bytes().begin(), file.bytes().end(), 'x'), left);
    try {
      file.CheckIntact();
      ADD_FAILURE() << left;
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()),
                "data: " + path + ": has become shorter while it was read, from 20380 to " +
                    std::to_string(left) +
                    " bytes: put it back as it was; a run then goes on from its last checkpoint");
    }
    EXPECT_THROW(DescribeFile(file), DataError);
    // Lost pages stay lost, though the file has its size again.
    std::ofstream(path, std::ios::binary) << text;
    if (left + 4096 < text.size()) {
      EXPECT_THROW(file.CheckIntact(), DataError) << left;
    }
  }
}

TEST_F(DataFilesTest, AFileThatIsReplacedOrGrowsIsIntact) {
  const std::string path = Write("a.txt", std::string(10000, 'x'));
  const FileContents file(path);
  fs::rename(Write("b.txt", "short"), path);
  EXPECT_EQ(file.bytes(), std::string(10000, 'x'));
  file.CheckIntact();
  fs::remove(path);
  file.CheckIntact();
  const FileContents other(Write("c.txt", "x"));
  Write("c.txt", "xyz");
  EXPECT_EQ(other.bytes(), "x");
  other.CheckIntact();
}

TEST_F(DataFilesTest, AFileThatShrinksWhileItIsCheckedHasBecomeShorter) {
  const std::string path = Write("a.txt", std::string(3 << 12, 'x'));
  const FileContents file(path);
  behind_stat = [&] {  // Another thread may do and see this.
    fs::resize_file(path, 100);
    EXPECT_EQ(std::count(file.bytes().begin(), file.bytes().end(), 'x'), 100);
  };
  EXPECT_NO_THROW(file.CheckIntact());  // The bytes that were read before were there.
  ASSERT_EQ(behind_stat, nullptr);
  try {
    file.CheckIntact();
    FAIL() << "intact";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("a.txt: has become shorter while it was read"),
              std::string::npos)
        << error.what();
  }
}

// Readers that meet the end at the same time, and guards that come and go meanwhile.
TEST_F(DataFilesTest, ManyThreadsReadAFileThatShrinks) {
  for (int round = 0; round < 20; ++round) {
    const std::string path = Write("a.txt", std::string(1 << 20, 'x'));
    const FileContents file(path);
    std::atomic<int> caught = 0;
    {
      std::vector<std::jthread> readers;
      for (int i = 0; i < 4; ++i) {
        readers.emplace_back([&, i] {
          const FileContents own(Write("own_" + std::to_string(i), "x"));
          try {
            for (;;) {
              const auto n = std::count(file.bytes().begin(), file.bytes().end(), 'x');
              file.CheckIntact();
              if (n != 1 << 20) std::abort();  // Zeros that nobody was told of.
            }
          } catch (const DataError&) {
            ++caught;
          }
        });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(round));
      fs::resize_file(path, static_cast<uintmax_t>(round) << 15);
    }
    EXPECT_EQ(caught, 4);
  }
}

TEST(MappingGuardDeathTest, AnotherMappingsErrorEndsTheProcessAsBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);  // A sanitizer has a handler of its own.
        const std::string path = ::testing::TempDir() + "/guarded";
        std::ofstream(path) << std::string(8192, 'x');
        const FileContents guarded(path);
        const int fd = ::open(path.c_str(), O_RDWR);
        const auto* other =
            static_cast<const volatile char*>(::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0));
        if (::ftruncate(fd, 0) != 0) ::_exit(1);
        ::_exit(other[0]);
      },
      // By the signal, or by a sanitizer that reports it.
      [](int status) {
        return ::testing::KilledBySignal(SIGBUS)(status) || WEXITSTATUS(status) > 1;
      },
      "");
}

}  // namespace
}  // namespace fsdp
