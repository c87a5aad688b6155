#include "trainer/data/data_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"

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
  EXPECT_EQ(ErrorOf(dir_ / "none.txt"),
            "data: none.txt: No such file or directory: check data.*.paths (a relative path starts "
            "at the working directory, not at the recipe)");
  EXPECT_EQ(ErrorOf(Write("empty.txt", "")),
            "data: empty.txt: is empty: take it out of data.*.paths, or fill it");
  fs::create_directory(dir_ / "sub");
  EXPECT_EQ(ErrorOf(dir_ / "sub"), "data: sub: is a directory: name its files, or a glob: sub/*");
  ASSERT_EQ(mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(ErrorOf(dir_ / "pipe"), "data: pipe: is not a regular file");
  EXPECT_EQ(ErrorOf(Write("text.gz", "not compressed")),
            "data: text.gz: is not in gzip format: rename it, or compress it");
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
  EXPECT_THROW(expand({}), DataError);
}

TEST(DescribeFile, SmallContentsWholeAndLargeOnesHereAndThere) {
  EXPECT_EQ(DescribeFile("p", "abc"), (DataFile{"p", 3, HashBytes("abc")}));
  std::string large((1 << 24) + 1000000, 'x');
  const uint64_t hash = DescribeFile("p", large).hash;
  EXPECT_EQ(DescribeFile("q", large).hash, hash);
  EXPECT_NE(DescribeFile("p", std::string_view(large).substr(1)).hash, hash);
  for (const size_t at : {size_t{0}, size_t{4095}, large.size() - 4096, large.size() - 1}) {
    large[at] = 'y';
    EXPECT_NE(DescribeFile("p", large).hash, hash) << at;
    large[at] = 'x';
  }
  large[5000] = 'y';  // Between two stretches.
  EXPECT_EQ(DescribeFile("p", large).hash, hash);
  // Up to 16 MiB every byte counts.
  std::string whole(1 << 24, 'x');
  const uint64_t before = DescribeFile("p", whole).hash;
  whole[5000] = 'y';
  EXPECT_NE(DescribeFile("p", whole).hash, before);
}

}  // namespace
}  // namespace fsdp
