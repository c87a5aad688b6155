// Training on a disk that returns other bytes than were written: whatever of it is wrong, and
// whenever, nothing that was made of it becomes a checkpoint, and a run that goes on from the last
// one loses no bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/lying_disk.h"
#include "tests/trainer/comm/ranks.h"
#include "tests/trainer/loop/checkpoint_files.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/loop/train.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::UnusedPath;
using Strings = std::vector<std::string>;
using Files = std::map<std::string, std::string>;

constexpr int kSteps = 4;

// Masters, both moments, averages and activations are spilled; averages are evaluated; every second
// step is saved, the last one with nothing behind it.
Recipe Spilled(const std::string& run, bool async) {
  return ParseRecipe(
      {{"spilled",
        "run: {threads: 1, timeout_s: 60}\n"
        "model: {family: gpt2, hidden_size: 32, num_hidden_layers: 2,\n"
        "        num_attention_heads: 2, vocab_size: 64,\n"
        "        max_position_embeddings: 16}\n"
        "data: {train: {source: synthetic}, valid: {source: synthetic}, seq_len: 16}\n"
        "train: {micro_batch_size: 1, global_batch_size: 2,\n"
        "        activation_offload: spill, ema: {decay: 0.9}}\n"
        "fsdp: {mixed_precision: {param_dtype: bf16}}\n"
        "eval: {every: 3, steps: 1, ema: true}\n"
        "optimizer: {lr: 1.0e-2}\n"}},
      {"run.dir=" + run, "train.steps=" + std::to_string(kSteps),
       "fsdp.cpu_offload={optimizer: true, spill: " + ::testing::TempDir() + "}",
       std::string("checkpoint={every: 2, keep_last: 0, async: ") + (async ? "true}" : "false}")});
}

using Counts = std::map<int64_t, int64_t>;  // Transfers that begin there, by offset.

struct End {
  int code = -1;
  bool lied = false;
  Counts reads, writes;
  std::string error;
};

void Print(const Counts& counts, std::ostream& out) {
  out << counts.size() << ' ';
  for (const auto& [offset, count] : counts) out << offset << ' ' << count << ' ';
}

Counts ReadCounts(std::istream& in) {
  Counts counts;
  size_t size = 0;
  in >> size;
  for (size_t i = 0; i < size; ++i) {
    int64_t offset = 0;
    in >> offset >> counts[offset];
  }
  return counts;
}

// The end of each rank; the disk of `liar`'s spill file lies.
std::vector<End> Train(int world, const Recipe& recipe, int liar = 0, Lie lie = Lie::kNone,
                       int64_t offset = 0, int64_t nth = 0) {
  std::vector<End> ends;
  for (const testing::Outcome& outcome :
       testing::RunProcessRanks(world, [&](testing::Rank& rank) -> std::string {
         LyingDisk disk(rank.rank == liar ? lie : Lie::kNone, offset, nth);
         Job job;
         job.rank = rank.rank;
         job.world = job.local_world = rank.size;
         job.store = rank.store;
         job.checker = std::make_shared<StreamChecker>();
         job.spill_disk = &disk;
         job.connect = [&](const std::string& name, const RankGroup& group) {
           return rank.join_group(name, group, {.timeout_s = recipe.run.timeout_s});
         };
         std::ostringstream out;
         const auto say = [&](ExitCode code, const std::string& error) {
           out << static_cast<int>(code) << ' ' << (disk.lied_at() >= 0) << ' ';
           Print(disk.reads(), out);
           Print(disk.writes(), out);
           out << error;
           return out.str();
         };
         try {
           return say(TrainRank(recipe, job), "");
         } catch (const Error& error) {
           return say(error.code(), error.what());
         }
       })) {
    End& end = ends.emplace_back();
    std::istringstream in(outcome.result);
    in >> end.code >> end.lied;
    end.reads = ReadCounts(in);
    end.writes = ReadCounts(in);
    std::getline(in >> std::ws, end.error, '\0');
    if (!outcome.error.empty()) end.error = outcome.error;
  }
  return ends;
}

// The part that a message says is wrong: "m", "activations", "the copy to be saved of m"; and its
// unit.
std::string PartIn(const std::string& error, std::string* unit = nullptr) {
  const std::string before = " (training state, spilled): bytes ";
  const size_t at = error.find(before), comma = error.find(", ", at + before.size());
  const size_t end = error.find(", cannot be read: the disk does not return what was written");
  if (at == std::string::npos || end == std::string::npos || comma + 2 > end) return "";
  std::string part = error.substr(comma + 2, end - comma - 2);
  const size_t of = part.rfind(" of ");
  if (of == std::string::npos) return part;
  if (unit != nullptr) *unit = part.substr(of + 4);
  return part.substr(0, of);
}

class SpilledState : public ::testing::Test {
 protected:
  void TearDown() override { std::printf("%d lies\n", exposed_); }

  // A run that nothing has disturbed.
  struct Undisturbed {
    Files files;
    Counts reads, writes;  // Rank 0's.
  };

  const Undisturbed& Want(int world, bool async) {
    Undisturbed& want = undisturbed_[{world, async}];
    if (!want.files.empty()) return want;
    const std::string run = UnusedPath("undisturbed");
    const std::vector<End> ends = Train(world, Spilled(run, async));
    for (const End& end : ends) EXPECT_EQ(end.code, 0) << end.error;
    want = {testing::CheckpointFiles(run), ends[0].reads, ends[0].writes};
    EXPECT_GT(want.reads.size(), 10u);
    return want;
  }

  // One lie and, every other time, a resume on a disk that is as it should be. Counts the part that
  // was found wrong, "" where nobody read it.
  void Expose(int world, int liar, bool async, Lie lie, int64_t offset, int64_t nth) {
    SCOPED_TRACE(std::to_string(world) + " ranks, of rank " + std::to_string(liar) + " lie " +
                 std::to_string(static_cast<int>(lie)) + " at " + std::to_string(offset) +
                 ", number " + std::to_string(nth) + (async ? ", async" : ""));
    const Undisturbed& want = Want(world, async);
    const std::string run = UnusedPath("disturbed");
    const Recipe recipe = Spilled(run, async);
    const std::vector<End> ends = Train(world, recipe, liar, lie, offset, nth);
    EXPECT_TRUE(ends[liar].lied);
    const int code = ends[liar].code;
    EXPECT_TRUE(code == 5 || (code == 0 && lie != Lie::kReadsOther)) << ends[liar].error;
    std::string part, unit;
    for (const End& end : ends) {
      // A rank that hears of it in a collective ends as for any other rank that is gone.
      EXPECT_TRUE(end.code == code || (code == 5 && end.code == 6)) << end.error;
      if (code == 0) continue;
      part = PartIn(end.error, &unit);
      EXPECT_NE(part, "") << end.error;
      EXPECT_TRUE(part == "activations" || unit == "root" || unit.starts_with("h.")) << end.error;
    }
    ++parts_[part];
    // Each checkpoint that there is has the bits that it should have, and `latest` names one.
    if (fs::exists(run + "/checkpoints")) {
      for (const auto& [name, bytes] : testing::CheckpointFiles(run)) {
        if (name.find(".tmp/") != std::string::npos) continue;  // Counts for nothing.
        if (name == "checkpoints/latest") {
          EXPECT_TRUE(want.files.count("checkpoints/" + bytes + "/rank_0.safetensors")) << bytes;
          EXPECT_TRUE(fs::exists(run + "/checkpoints/" + bytes + "/manifest.json")) << bytes;
        } else {
          EXPECT_TRUE(want.files.count(name) && want.files.at(name) == bytes) << name;
        }
      }
    }
    if (++exposed_ % 2 == 0) return;
    for (const End& end : Train(world, recipe)) EXPECT_EQ(end.code, 0) << end.error;
    EXPECT_TRUE(testing::CheckpointFiles(run) == want.files) << "after a resume";
  }

  // Each of these parts was found wrong at least once.
  void ExpectFound(const Strings& parts) {
    std::string found;
    for (const auto& [part, times] : parts_) {
      found += (part.empty() ? "nobody noticed" : part) + ": " + std::to_string(times) + "\n";
    }
    for (const std::string& part : parts) EXPECT_GT(parts_[part], 0) << part << "\n" << found;
    std::printf("%s", found.c_str());
  }

  std::map<std::pair<int, bool>, Undisturbed> undisturbed_;
  std::map<std::string, int> parts_;
  int exposed_ = 0;
};

// Every place, in one of its reads, and some in each of them: where it is updated, evaluated,
// copied and saved. A run takes one in three, and all of what a save alone reads.
TEST_F(SpilledState, WhateverIsReadWrong) {
  int i = 0;
  size_t lies = testing::Part(3);
  for (const auto& [offset, reads] : Want(1, true).reads) {
    const int64_t first = i++ % 8 == 0 ? 0 : i % reads, end = i % 8 == 1 ? reads : first + 1;
    for (int64_t nth = first; nth < end; ++nth) {
      if (++lies % 3 != 0 && !testing::AllCases()) continue;
      Expose(1, 0, /*async=*/true, Lie::kReadsOther, offset, nth);
    }
  }
  // By a save of what is there.
  for (const auto& [offset, reads] : Want(1, false).reads) {
    if (++i % 4 == 0) Expose(1, 0, /*async=*/false, Lie::kReadsOther, offset, reads - 1);
  }
  ExpectFound({"master", "m", "v", "ema", "activations", "the copy to be saved of master",
               "the copy to be saved of m", "the copy to be saved of v",
               "the copy to be saved of ema"});
}

TEST_F(SpilledState, WhateverIsWrittenWrong) {
  int i = 0;
  for (const auto& [offset, writes] : Want(1, true).writes) {
    const Lie lies[] = {Lie::kWritesOther, Lie::kLosesWrite, Lie::kWritesElsewhere};
    if (i++ % 2 == 0) Expose(1, 0, /*async=*/true, lies[i / 2 % 3], offset, i / 2 % writes);
  }
  ExpectFound({"master", "ema", "activations"});
}

TEST_F(SpilledState, OneRanksDiskEndsAll) {
  int i = 0;
  for (const auto& [offset, reads] : Want(2, true).reads) {
    if (++i % 8 == 0) Expose(2, i / 8 % 2, /*async=*/true, Lie::kReadsOther, offset, reads / 2);
  }
}

// It is not the checkpoint that is damaged: an older one would come to the same disk.
TEST_F(SpilledState, ADiskThatFailsAResumeAdvisesNoOlderCheckpoint) {
  const std::string run = UnusedPath("resumed");
  const Recipe recipe = Spilled(run, /*async=*/false);
  ASSERT_EQ(Train(1, recipe)[0].code, 0);
  const End whole = Train(1, recipe)[0];  // Only loads what there is, and looks at it.
  ASSERT_EQ(whole.code, 0) << whole.error;
  ASSERT_FALSE(whole.reads.empty());
  const End end = Train(1, recipe, 0, Lie::kReadsOther, whole.reads.begin()->first, 0)[0];
  EXPECT_EQ(end.code, 5) << end.error;
  EXPECT_NE(PartIn(end.error), "") << end.error;
  EXPECT_EQ(end.error.find("older"), std::string::npos) << end.error;
}

}  // namespace
}  // namespace fsdp
