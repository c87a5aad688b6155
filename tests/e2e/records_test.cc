// The records of a run, changed between stop and start: a resume misses none of them in silence.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/e2e/run_binary.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/manifest_writer.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

const Strings kSaving = {"checkpoint={every: 4, keep_last: 0}"};
const std::string kAllowed = "checkpoint.allow_changed=[records]";

Strings Until(int steps, const Strings& more = {}) {
  Strings settings = {kSaving[0], "train.steps=" + std::to_string(steps)};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Outcome RunOn(const Job& job, int world, const Strings& settings) {
  return world == 1 ? job.Train(settings) : job.Launch(world, settings);
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void Replace(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// All that a refused start must leave as it was.
std::string Contents(const std::string& run) {
  std::string all;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(run)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    const std::string name = path.filename();
    if (name == ".lock" || name.starts_with("rank_0.log") || name.starts_with("rank_1.log"))
      continue;
    all += path.string() + "\n" + (fs::is_regular_file(path) ? ReadFile(path) : "");
  }
  return all;
}

struct Harm {
  const char* name;
  std::function<void(const std::string& path, const std::string& text)> work;
  const char* want;
};

const std::vector<Harm>& Harms() {
  static const std::vector<Harm> harms = {
      {"removed", [](auto& path, auto&) { fs::remove(path); }, "is gone, want "},
      {"emptied", [](auto& path, auto&) { Replace(path, ""); }, "has 0 bytes, want at least "},
      {"cut to half its lines",
       [](auto& path, auto& text) {
         Replace(path, text.substr(0, text.find('\n', text.size() / 3) + 1));
       },
       " bytes, want at least "},
      {"without a line of its middle",
       [](auto& path, auto& text) {
         const size_t begin = text.find('\n', text.size() / 3) + 1;
         Replace(path, std::string(text).erase(begin, text.find('\n', begin) + 1 - begin));
       },
       ", want "},
      {"with a digit changed",
       [](auto& path, auto& text) {
         std::string other = text;
         const size_t digit = other.find("\"loss\": ") + 8;
         other[digit] = other[digit] == '1' ? '2' : '1';
         Replace(path, other);
       },
       " bytes have the hash "},
      {"with a block of zeros",
       [](auto& path, auto& text) {
         std::string other = text;
         std::fill_n(other.begin() + static_cast<int64_t>(other.size() / 3), 100, '\0');
         Replace(path, other);
       },
       " bytes have the hash "},
  };
  return harms;
}

TEST(Records, ThatAreNotThereAreMissedAtAResume) {
  for (const int world : {1, 2}) {
    for (const Harm& harm : Harms()) {
      SCOPED_TRACE(std::string("metrics.jsonl ") + harm.name + ", ranks " + std::to_string(world));
      Job job;
      const std::string path = job.run_dir() + "/metrics.jsonl";
      ASSERT_EQ(RunOn(job, world, Until(10)).code, 0);
      const std::string text = ReadFile(path);
      harm.work(path, text);
      const std::string before = Contents(job.run_dir());
      for (const Strings& more : {Strings{}, Strings{"checkpoint.resume=8"}}) {
        const Outcome refused = RunOn(job, world, Until(12, more));
        EXPECT_EQ(refused.code, 5) << refused.Text();
        EXPECT_TRUE(Has(refused.err, path + ": ") && Has(refused.err, harm.want)) << refused.err;
        EXPECT_TRUE(
            Has(refused.err, "or go on with what is there by checkpoint.allow_changed: [records]"))
            << refused.err;
        EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), world) << refused.err;
        EXPECT_TRUE(Contents(job.run_dir()) == before);
      }
      Strings dry = job.Flags(Until(12));
      dry.push_back("--dry-run");
      EXPECT_EQ(Call(dry).code, 5);

      const Outcome on = RunOn(job, world, Until(12, {kAllowed}));
      ASSERT_EQ(on.code, 0) << on.Text();
      EXPECT_TRUE(Has(on.Text(), "records: " + path + ": ") && Has(on.Text(), harm.want))
          << on.Text();
      const std::vector<Json> resumes = OfKind(ReadMetrics(job.run_dir()), "resume");
      ASSERT_EQ(resumes.size(), 1u);
      EXPECT_TRUE(Has(resumes[0].value("records_changed", ""), harm.want)) << resumes[0];
      EXPECT_EQ(LastStep(job.run_dir()), 12);
      // From there on they are its own again.
      const Outcome next = RunOn(job, world, Until(14));
      EXPECT_EQ(next.code, 0) << next.Text();
      EXPECT_FALSE(OfKind(ReadMetrics(job.run_dir()), "resume").back().contains("records_changed"));
    }
  }
}

// Lines behind a checkpoint's records are not the checkpoint's: a line that a kill has cut, and
// those of steps that are done again.
TEST(Records, BehindTheCheckpointMayGo) {
  Job job;
  const std::string path = job.run_dir() + "/metrics.jsonl";
  ASSERT_EQ(job.Train(Until(10)).code, 0);
  const std::string text = ReadFile(path);
  // The last checkpoint's own record and the end follow it.
  Replace(path, text.substr(0, text.rfind("{\"kind\": \"checkpoint\"") + 20));
  const Outcome on = job.Train(Until(12));
  EXPECT_EQ(on.code, 0) << on.Text();
  EXPECT_TRUE(Has(on.Text(), "dropped 1 damaged line")) << on.Text();
  for (const char* step : {"4", "8", "12"}) {  // Whichever is gone back to.
    const Outcome back = job.Train(Until(14, {std::string("checkpoint.resume=") + step}));
    EXPECT_EQ(back.code, 0) << step << back.Text();
  }
}

TEST(Records, SetAsideWithTheirCheckpointAreNamed) {
  Job job;
  ASSERT_EQ(job.Train(Until(10)).code, 0);
  ASSERT_EQ(job.Train(Until(12, {"checkpoint.resume=4"})).code, 0);
  const std::string aside = job.run_dir() + "/checkpoints/step_10.aside";
  ASSERT_TRUE(Exists(aside));
  const Outcome refused = job.Train(Until(12, {"checkpoint.resume=" + aside}));
  EXPECT_EQ(refused.code, 5) << refused.Text();
  const std::string kept = job.run_dir() + "/metrics.1.jsonl";
  EXPECT_TRUE(Has(refused.err, "; " + kept + " has them")) << refused.err;
  fs::copy_file(kept, job.run_dir() + "/metrics.jsonl", fs::copy_options::overwrite_existing);
  const Outcome on = job.Train(Until(12, {"checkpoint.resume=" + aside}));
  EXPECT_EQ(on.code, 0) << on.Text();
}

TEST(Records, OfAnotherRunOrAnOlderBuildAreNotCompared) {
  Job job;
  ASSERT_EQ(job.Train(Until(8)).code, 0);
  const std::string first = job.run_dir(), newest = first + "/checkpoints/step_8";
  job.RunDir("other");
  const Outcome other = job.Train(Until(10, {"checkpoint.resume=" + first}));
  EXPECT_EQ(other.code, 0) << other.Text();
  EXPECT_TRUE(Has(other.out, "records: " + newest + " is of another run directory")) << other.out;
  const Outcome again = job.Train(Until(12));  // By now its own.
  EXPECT_EQ(again.code, 0) << again.Text();
  EXPECT_FALSE(Has(again.Text(), "records: ")) << again.Text();

  const auto expect_unknown = [&](const std::string& run) {
    fs::remove(run + "/metrics.jsonl");
    const Outcome on = job.Train(Until(10, {"run.dir=" + run}));
    EXPECT_EQ(on.code, 0) << on.Text();
    EXPECT_TRUE(
        Has(on.out, "records: " + run + "/checkpoints/step_8 does not say what metrics.jsonl held"))
        << on.Text();
  };
  // One that a reshard has written.
  const std::string resharded = job.dir() / "resharded";
  fs::create_directories(resharded + "/checkpoints");
  ASSERT_EQ(Call({"checkpoint", "reshard", newest, "--world-size", "2", "--out",
                  resharded + "/checkpoints/step_8"})
                .code,
            0);
  expect_unknown(resharded);
  // One that says nothing of records, as an import.
  Manifest manifest = ReadManifest(newest);
  ASSERT_TRUE(manifest.meta.records);
  EXPECT_GT(manifest.meta.records->bytes, 1000);
  manifest.meta.records.reset();
  Replace(newest + "/manifest.json", ManifestToText(manifest));
  expect_unknown(first);
}

TEST(Records, AllowsNothingOfAnotherName) {
  Job job;
  const Outcome refused = job.Train({"checkpoint.allow_changed=[records, model.hidden_size]"});
  EXPECT_EQ(refused.code, 2) << refused.Text();
  EXPECT_TRUE(Has(refused.err, "checkpoint.allow_changed[1]: want `model.embedding_dropout`"))
      << refused.err;
}

}  // namespace
}  // namespace fsdp::e2e
