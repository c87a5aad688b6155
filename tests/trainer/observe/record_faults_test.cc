// metrics.jsonl and a disk that refuses a call of its writer, or loses what was not synced.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/testing/power_cut.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/observe/metrics.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FileCall;
using testing::FileWatch;
using Strings = std::vector<std::string>;

std::string TestDirectory(const std::string& name) {
  return fs::canonical(testing::FreshDirectory(name));
}

StepRecord Step(int64_t step) { return {.step = step, .loss = 5.0 / static_cast<double>(step)}; }

Strings LinesOf(const std::string& path) {
  Strings lines;
  std::istringstream file(ReadWholeFile(path));
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

Strings First(int64_t count) {
  Strings lines;
  for (int64_t step = 1; step <= count; ++step) lines.push_back(ToJson(Step(step)));
  return lines;
}

// Synced lines are there after a resume, and each other line is one that was written.
TEST(RecordsAfterAPowerCut, AreThoseThatWereSynced) {
  constexpr uint64_t kSeed = 20260803;
  const std::string root = TestDirectory("disk"), after = TestDirectory("after");
  testing::RecordedDisk disk(root);
  std::vector<std::pair<size_t, int64_t>> synced = {{0, 0}};  // Changes, steps by then.
  {
    MetricsWriter writer = MetricsWriter::Create(root + "/metrics.jsonl");
    WriteAtomicFile(root + "/provenance.json", "{}");  // As a run does: syncs the directory.
    for (int64_t step = 1; step <= 12; ++step) {
      writer.Write(Step(step));
      if (step % 4 != 0) continue;
      writer.Sync();
      synced.emplace_back(disk.changes(), step);
    }
  }
  disk.Stop();
  std::mt19937_64 random(kSeed);
  const FileWatch no_sync(after, nullptr, nullptr);
  const Strings all = First(12);
  const std::string path = after + "/metrics.jsonl";
  int states = 0;
  int64_t zeros = 0, damaged = 0;
  for (size_t count = 0; count <= disk.changes(); ++count) {
    int64_t safe = 0;
    for (const auto& [changes, step] : synced) {
      if (changes <= count) safe = step;
    }
    for (const testing::DiskState& state : disk.After(count, 100, random)) {
      ++states;
      testing::LayOut(state, after);
      if (!fs::exists(path)) {
        ASSERT_EQ(safe, 0);
        continue;
      }
      MetricsKept kept;
      MetricsWriter::Resume(path, 100, &kept);
      zeros += kept.zeros;
      damaged += kept.damaged;
      const Strings lines = LinesOf(path);
      ASSERT_GE(std::ssize(lines), safe) << "behind change " << count;
      ASSERT_TRUE(std::equal(all.begin(), all.begin() + safe, lines.begin()));
      ASSERT_TRUE(std::is_sorted(lines.begin() + safe, lines.end(), [&](auto& a, auto& b) {
        return std::find(all.begin(), all.end(), a) < std::find(all.begin(), all.end(), b);
      }));
      for (const std::string& line : lines) {
        ASSERT_NE(std::find(all.begin(), all.end(), line), all.end()) << line;
      }
    }
  }
  std::printf("seed %llu, %d states; %lld zeros and %lld damaged lines dropped\n",
              static_cast<unsigned long long>(kSeed), states, static_cast<long long>(zeros),
              static_cast<long long>(damaged));
  EXPECT_GT(zeros, 0);
  EXPECT_GT(damaged, 0);
}

// Each call in turn: a record is there whole or not at all, and who wrote it hears of that.
TEST(RecordsOnADiskThatRefuses, AreWholeLines) {
  const std::string root = TestDirectory("refuses"), path = root + "/metrics.jsonl";
  int refused = 0;
  for (const int error : {EIO, ENOSPC}) {
    for (int at = 0;; ++at) {
      fs::remove(path);
      int seen = 0;
      int64_t written = 0;
      bool threw = false;
      {
        // Half of a write, and then nothing more.
        const FileWatch watch(
            root,
            [&](const FileCall& call) -> testing::Answer {
              const bool takes_back = call.kind == FileCall::Kind::kResize;
              const int number = takes_back ? -1 : seen++;
              if (number == at && call.kind == FileCall::Kind::kWrite) return {.half = true};
              return {.error = number >= at ? error : 0};
            },
            nullptr);
        try {
          MetricsWriter writer = MetricsWriter::Create(path);
          for (int64_t step = 1; step <= 5; ++step) {
            writer.Write(Step(step));
            ++written;
          }
          writer.Sync();
        } catch (const CheckpointError&) {
          threw = true;
        }
      }
      if (!threw) {
        ASSERT_EQ(written, 5);
        break;
      }
      ++refused;
      if (fs::exists(path)) {
        ASSERT_EQ(LinesOf(path), First(written)) << at;
      }
    }
  }
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace fsdp
