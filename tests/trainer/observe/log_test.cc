#include "trainer/observe/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using testing::FreshDirectory;

TEST(Log, LinesHaveTimeAndLevelAndAreThereAtOnce) {
  const std::string path = FreshDirectory("log") + "/logs/rank_3.log";
  {
    Log log(path);
    log.Info("step {} is text, not a format");
    log.Warning("two");
    log.Error("three");
    const std::string time = R"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3})";
    EXPECT_THAT(ReadWholeFile(path),
                ::testing::MatchesRegex(time + " I step \\{\\} is text, not a format\n" + time +
                                        " W two\n" + time + " E three\n"));
  }
  Log(path).Info("four");  // A resumed run goes on in the same file.
  EXPECT_NE(ReadWholeFile(path).find("three\n"), std::string::npos);
  EXPECT_NE(ReadWholeFile(path).find("four\n"), std::string::npos);
}

TEST(Log, ScreenSeesWarningsAndErrorsOnly) {
  std::vector<std::pair<LogLevel, std::string>> seen;
  Log log(FreshDirectory("screen") + "/rank_0.log",
          [&](LogLevel level, std::string_view text) { seen.emplace_back(level, text); });
  log.Info("one");
  log.Warning("two");
  log.Error("three");
  EXPECT_EQ(seen, (std::vector<std::pair<LogLevel, std::string>>{{LogLevel::kWarning, "two"},
                                                                 {LogLevel::kError, "three"}}));
}

TEST(Log, ThreadsDoNotMixLines) {
  const std::string path = FreshDirectory("threads") + "/rank_0.log";
  int shown = 0;
  {
    Log log(path, [&](LogLevel, std::string_view) { ++shown; });
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < 100; ++i) log.Warning(std::string(50, static_cast<char>('a' + t)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(shown, 400);
  std::istringstream lines(ReadWholeFile(path));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_GE(line.size(), 50u);
    EXPECT_EQ(line.substr(line.size() - 50), std::string(50, line.back()));
  }
  EXPECT_EQ(count, 400);
}

// A pipe would wait for a reader; a device takes lines and keeps none, as its owner wishes.
TEST(Log, APipeIsRefusedAndADeviceWrittenTo) {
  const std::string dir = FreshDirectory("nodes");
  std::filesystem::create_directories(dir);
  ASSERT_EQ(::mkfifo((dir + "/pipe").c_str(), 0666), 0);
  try {
    Log log(dir + "/pipe");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.what(), dir +
                                "/pipe: the log cannot be written: it is neither a file nor a "
                                "character device");
  }
  std::filesystem::create_symlink("/dev/null", dir + "/null");
  Log(dir + "/null").Info("unread");
  EXPECT_TRUE(std::filesystem::is_symlink(dir + "/null"));
}

TEST(Log, KnowsWhetherItsFileIsStillThere) {
  const std::string dir = FreshDirectory("gone"), path = dir + "/logs/rank_0.log";
  const Log log(path);
  const auto error = [&]() -> std::string { return testing::ErrorOf([&] { log.RequireThere(); }); };
  EXPECT_EQ(error(), "");
  std::filesystem::rename(dir + "/logs", dir + "/moved");
  EXPECT_EQ(error(),
            path +
                ": is gone: it was removed or renamed while it was written, and what it held is no "
                "longer there");
  std::filesystem::create_directories(dir + "/logs");
  WriteAtomicFile(path, "another");
  EXPECT_EQ(error().find(path + ": is another file by now: it was replaced"), 0u) << error();
  const Log null("/dev/null");
  EXPECT_NO_THROW(null.RequireThere());
}

TEST(Log, UnwritableIsAClearError) {
  const std::string dir = FreshDirectory("unwritable");
  std::filesystem::create_directories(dir);
  WriteAtomicFile(dir + "/logs", "a file");
  try {
    Log log(dir + "/logs/rank_0.log");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckpoint);
    EXPECT_NE(std::string(error.what()).find(dir + "/logs/rank_0.log: the log cannot be written: "),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fsdp
