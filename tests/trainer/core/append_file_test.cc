#include "trainer/core/append_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;

void Put(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

std::string ErrorOf(const std::function<void()>& call) { return testing::ErrorOf(call); }

TEST(AppendFile, NoticesThatWhatItWroteIsNoLongerThere) {
  const std::string gone =
      ": is gone: it was removed or renamed while it was written, and what it held is no longer "
      "there";
  const std::string other =
      ": is another file by now: it was replaced while it was written, and what it held is no "
      "longer there";
  const struct {
    std::function<void(const std::string& dir, const std::string& file)> harm;
    std::string want;
  } cases[] = {
      {[](auto&, auto& file) { fs::remove(file); }, gone},
      {[](auto&, auto& file) { fs::rename(file, file + ".1"); }, gone},
      {[](auto& dir, auto&) { fs::remove_all(dir); }, gone},
      {[](auto& dir, auto&) { fs::rename(dir, dir + ".moved"); }, gone},
      {[](auto& dir, auto&) { fs::remove_all(dir), Put(dir, "a file now"); }, gone},
      {[](auto&, auto& file) { fs::rename(file, file + ".1"), Put(file, "one\n"); }, other},
      {[](auto&, auto& file) { WriteAtomicFile(file, "one\n"); }, other},
      {[](auto&, auto& file) { fs::resize_file(file, 3); },
       ": has 3 bytes, of 4 that were written: it was cut while it was written"},
  };
  for (const auto& c : cases) {
    const std::string dir = FreshDirectory("harm");
    fs::remove_all(dir + ".moved");
    AppendFile file = AppendFile::Open(dir + "/f");
    file.Write("one\n");
    file.Sync();
    c.harm(dir, file.path());
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(ErrorOf([&] { file.Write("two\n"); }), file.path() + c.want);
      EXPECT_EQ(ErrorOf([&] { file.Sync(); }), file.path() + c.want);
    }
    fs::remove_all(dir);
  }
}

TEST(AppendFile, MayBeALinkAndMayGrow) {
  const std::string dir = FreshDirectory("link");
  fs::create_symlink("far", dir + "/f");
  AppendFile file = AppendFile::Open(dir + "/f");
  file.Write("one\n");
  Put(dir + "/g", "");
  std::ofstream(dir + "/far", std::ios::app) << "somebody's\n";
  file.Write("two\n");
  file.Sync();
  EXPECT_TRUE(fs::is_symlink(dir + "/f"));
  EXPECT_EQ(ReadWholeFile(dir + "/f"), "one\nsomebody's\ntwo\n");
}

TEST(AppendFile, RefusesWhatIsNoFile) {
  const std::string dir = FreshDirectory("nodes");
  ASSERT_EQ(::mkfifo((dir + "/pipe").c_str(), 0666), 0);
  fs::create_symlink("pipe", dir + "/link");
  for (const std::string& path : {dir, dir + "/pipe", dir + "/link", std::string("/dev/null")}) {
    EXPECT_EQ(ErrorOf([&] { AppendFile::Open(path); }),
              path + ": is no file: records must be there to be read again");
    EXPECT_EQ(AppendFile::Create(path), std::nullopt);
  }
}

}  // namespace
}  // namespace fsdp
