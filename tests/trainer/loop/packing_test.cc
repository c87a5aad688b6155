// Whole documents in rows, from a recipe to losses: how they are packed changes nothing but
// rounding, and not what a run says or resumes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "tests/trainer/loop/train_ranks.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/data/samples/document_store.h"
#include "trainer/data/samples/fitted_samples.h"
#include "trainer/data/samples/packed_rows.h"
#include "trainer/data/text/text_source.h"
#include "trainer/loop/kernel_choice.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::UnusedPath;
using Strings = std::vector<std::string>;

Recipe Tiny(const std::string& directory, const Strings& more) {
  Strings overrides = {"run.dir=" + directory};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return ParseRecipe({{"tiny",
                       "run: {threads: 1, timeout_s: 60}\n"
                       "model: {family: gpt2, hidden_size: 16, num_hidden_layers: 2,\n"
                       "        num_attention_heads: 2, vocab_size: 256,\n"
                       "        max_position_embeddings: 16, initializer_range: 0.2}\n"
                       "data: {valid: null, seq_len: 16}\n"
                       "train: {steps: 4, micro_batch_size: 2, global_batch_size: 5}\n"
                       "optimizer: {name: sgd, lr: 0.1, weight_decay: 0}\n"}},
                     overrides);
}

std::vector<testing::Json> Records(const std::string& run, const std::string& kind) {
  std::vector<testing::Json> records;
  std::istringstream in(ReadWholeFile(run + "/metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    auto record = testing::Json::parse(line);
    if (record["kind"] == kind) records.push_back(record);
  }
  return records;
}

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = testing::FreshDirectory("packing_" + name) + "/a.txt";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string Source(const std::string& path) { return "{paths: [" + path + "], eot: 46}"; }

// Each of its tokens drawn from 26, behind them a full stop; `least` to 16 tokens, or all of
// `least`.
Strings Documents(int count, uint64_t seed, int64_t least, bool all_alike = false) {
  const RandomStream lengths(seed, "lengths"), letters(seed, "letters");
  Strings documents;
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
    const int64_t more = all_alike ? 0 : static_cast<int64_t>(lengths.Below(i, 17 - least));
    std::string text;
    for (int64_t t = 1; t < least + more; ++t) {
      text += static_cast<char>('a' + letters.Below(i * 32 + static_cast<uint64_t>(t), 26));
    }
    documents.push_back(text + ".");
  }
  return documents;
}

std::string Joined(const Strings& documents) {
  std::string text;
  for (const std::string& document : documents) text += document;
  return text;
}

int64_t RowsOf(const std::string& path, Packing packing) {
  const auto source = std::make_shared<TextSource>(Strings{path});
  const FittedSamples documents(std::make_shared<DocumentStore>(WithEot(source, '.')), 16,
                                TooLong::kError);
  return PackedRows(documents, 16, packing, false, 0).Rows();
}

struct Curve {
  std::vector<double> losses, norms, tokens;
  std::vector<double> evals;
};
Curve CurveOf(int world, const Strings& settings) {
  const std::string run = UnusedPath("curve");
  EXPECT_EQ(testing::TrainRanks(world, Tiny(run, settings)), Strings(world, "0 "));
  Curve curve;
  for (const auto& step : Records(run, "step")) {
    curve.losses.push_back(step["loss"]);
    curve.norms.push_back(step["grad_norm"]);
    curve.tokens.push_back(step["tokens"]);
  }
  for (const auto& eval : Records(run, "eval")) curve.evals.push_back(eval["loss"]);
  return curve;
}

// All are sums of up to 300 terms of the same numbers, in another order: 1e-5 is 80 roundings.
void ExpectSame(const Curve& got, const Curve& want, const std::string& what) {
  const auto near = [&](const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * std::abs(b[i])) << what;
  };
  near(got.losses, want.losses);
  near(got.norms, want.norms);
  near(got.evals, want.evals);
  EXPECT_EQ(got.tokens, want.tokens) << what;
}

Strings Packed(const std::string& path, Packing packing) {
  return {"data.train=" + Source(path), "data.packing=" + std::string(Name(packing)),
          "train.global_batch_size=" + std::to_string(RowsOf(path, packing))};
}

// A step is an epoch, so all runs learn from the same documents at once.
TEST(PackingTest, OneLossHoweverDocumentsArePacked) {
  const Strings documents = Documents(23, 1, 2);
  const std::string path = Write("train", Joined(documents)),
                    valid = Write("valid", Joined(Documents(11, 2, 2)));
  const auto settings = [&](Packing packing) {
    Strings all = Packed(path, packing);
    all.insert(all.end(), {"data.valid=" + Source(valid), "eval={every: 2, steps: 9}"});
    return all;
  };
  ASSERT_LT(RowsOf(path, Packing::kSamples), 20);
  const Curve want = CurveOf(1, settings(Packing::kNone));
  ASSERT_EQ(want.losses.size(), 4u);
  ASSERT_EQ(want.evals.size(), 2u);
  EXPECT_LT(want.losses[3], want.losses[0] - 0.05);  // It learns.
  EXPECT_EQ(want.tokens[0], Joined(documents).size() - 23);
  for (const int world : {1, 2, 3}) {
    for (const Packing packing : {Packing::kSamples, Packing::kNone}) {
      ExpectSame(CurveOf(world, settings(packing)), want,
                 std::string(Name(packing)) + " at " + std::to_string(world));
    }
  }
  // The first loss is that of each document alone, as a window that ends with it.
  double sum = 0;
  for (const std::string& document : documents) {
    const std::string alone = Write("alone", document);
    const Curve one =
        CurveOf(1, {"data.train={paths: [" + alone + "]}", "train={steps: 1, global_batch_size: 1}",
                    "data.seq_len=" + std::to_string(document.size() - 1)});
    sum += one.losses.at(0) * one.tokens.at(0);
  }
  EXPECT_NEAR(want.losses[0], sum / want.tokens[0], 1e-5 * want.losses[0]);
}

TEST(PackingTest, RecordsMeanTheLossesOfTheirSteps) {
  const std::string path = Write("mean", Joined(Documents(23, 1, 2)));
  const auto records = [&](const std::string& every) {
    const std::string run = UnusedPath("mean");
    EXPECT_EQ(testing::TrainRanks(
                  2, Tiny(run, {"data.train=" + Source(path), "data.packing=none",
                                "train={steps: 7, global_batch_size: 3}", "log.every=" + every})),
              Strings(2, "0 "));
    return Records(run, "step");
  };
  const auto each = records("1"), thirds = records("3");
  ASSERT_EQ(each.size(), 7u);
  ASSERT_EQ(thirds.size(), 3u);
  size_t at = 0;
  double before = 0;
  for (const testing::Json& record : thirds) {
    double sum = 0, targets = 0;
    for (; at < each.size() && each[at]["step"] <= record["step"]; ++at) {
      const testing::Json& step = each[at];
      const double tokens = step["tokens"], n = tokens - std::exchange(before, tokens);
      sum += n * step["loss"].get<double>();
      targets += n;
      EXPECT_EQ(step["loss_mean"], step["loss"]);
      // Three documents, whose last tokens have no target; padding is none.
      const double more = step["tokens_per_s"].get<double>() / step["targets_per_s"].get<double>();
      EXPECT_NEAR(more, (n + 3) / n, 1e-9);
    }
    EXPECT_EQ(record["loss_mean"], sum / targets);
    EXPECT_EQ(record["loss"], each[at - 1]["loss"]);
  }
}

// Documents of one length are windows of data.documents, too: one loss and norm at every step.
TEST(PackingTest, DocumentsOfOneLengthAreWindows) {
  const std::string text = Joined(Documents(21, 3, 5, /*all_alike=*/true));
  const std::string path = Write("alike", text + ".");  // The last window's last target.
  const Curve windows =
      CurveOf(1, {"data.train=" + Source(path), "data={seq_len: 5, documents: true}",
                  "train.global_batch_size=21"});
  for (const int world : {1, 2, 3}) {
    for (const Packing packing : {Packing::kSamples, Packing::kNone}) {
      ExpectSame(CurveOf(world, Packed(path, packing)), windows,
                 std::string(Name(packing)) + " at " + std::to_string(world));
    }
  }
  EXPECT_EQ(RowsOf(path, Packing::kSamples), 7);
}

TEST(PackingTest, AResumeHasTheBitsOfARunThatDidNotStop) {
  const std::string path = Write("resumed", Joined(Documents(40, 4, 2)));
  for (const char* packing : {"samples", "none"}) {
    const auto train = [&](const std::string& run, int steps) {
      const Recipe recipe =
          Tiny(run, {"data={train: " + Source(path) + ", valid: {fraction: 0.2}}",
                     std::string("data.packing=") + packing, "train.steps=" + std::to_string(steps),
                     "eval={every: 3, steps: 2}", "optimizer.name=adamw", "optimizer.lr=0.01",
                     "schedule.name=constant"});
      EXPECT_EQ(testing::TrainRanks(2, recipe), Strings(2, "0 "));
    };
    const std::string whole = UnusedPath("whole_run"), parts = UnusedPath("parts");
    train(whole, 12);
    train(parts, 6);
    train(parts, 12);
    for (const char* kind : {"step", "eval"}) {
      const auto a = Records(whole, kind), b = Records(parts, kind);
      ASSERT_EQ(a.size(), kind == std::string("step") ? 12u : 4u);
      ASSERT_EQ(b.size(), a.size());
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i]["loss"], b[i]["loss"]) << packing << " " << kind << " " << i;
        if (kind == std::string("step")) {
          EXPECT_EQ(a[i]["tokens"], b[i]["tokens"]);
        }
      }
    }
    const auto other = [&](const std::string& setting) {
      return testing::TrainRanks(
          1,
          Tiny(parts, {"data={train: " + Source(path) + ", valid: {fraction: 0.2}}",
                       std::string("data.packing=") + packing, setting, "train.steps=20",
                       "optimizer.name=adamw", "optimizer.lr=0.01", "schedule.name=constant"}))[0];
    };
    const std::string end = other("data.too_long=cut");
    EXPECT_TRUE(end.starts_with("2 ") &&
                end.find("data.too_long: the run to resume has error, the recipe has cut: may not "
                         "differ on a resume") != std::string::npos)
        << end;
  }
}

// Documents that are held out of data.train are evaluated, whole, and not trained on.
TEST(PackingTest, WhatIsHeldOutIsWholeDocuments) {
  // 6 tokens each; a fifth of 60 is two documents.
  const std::string path = Write("held", Joined(Documents(10, 5, 6, true)));
  const Recipe recipe =
      Tiny(UnusedPath("held_run"), {"data={train: " + Source(path) + ", packing: samples}",
                                    "data.valid={fraction: 0.3}", "eval={every: 1, steps: 9}"});
  const RunData data = OpenData(recipe, ShapeFor(recipe), 1, 0, recipe.data.valid);
  EXPECT_EQ(data.samples->WholeSamples(0), 7);
  EXPECT_EQ(data.samples->Rows(0), 4);
  EXPECT_EQ(data.valid.at(0).loader->Targets(), 3 * 5);
  // 0.25 of 60 would begin in the middle of the eighth.
  Recipe quarter = recipe;
  quarter.data.valid = HeldOut{0.25};
  const RunData less = OpenData(quarter, ShapeFor(recipe), 1, 0, quarter.data.valid);
  EXPECT_EQ(less.samples->WholeSamples(0), 8);
  EXPECT_EQ(less.valid.at(0).loader->Targets(), 2 * 5);
  // A run that goes on holds out what it held out at first.
  const RunData resumed = OpenData(quarter, ShapeFor(recipe), 1, 0, recipe.data.valid);
  EXPECT_EQ(resumed.samples->WholeSamples(0), 7);
  EXPECT_EQ(resumed.valid.at(0).loader->Targets(), 2 * 5);
}

// An evaluation of files of its own reads nothing of data.train; one of a part of it does.
TEST(PackingTest, AnEvaluationSaysNothingOfDataThatItDoesNotRead) {
  const std::string path =
      Write("unread", Joined(Documents(10, 6, 6, true)) + std::string(40, 'x') + ".");
  const std::string other =
      Write("read", Joined(Documents(4, 6, 6, true)) + std::string(30, 'y') + ".");
  const auto said = [&](const std::string& valid, bool trains) {
    const Recipe recipe =
        Tiny(UnusedPath("unread_run"), {"data={train: " + Source(path) + ", valid: " + valid +
                                            ", packing: samples, too_long: cut}",
                                        "eval={every: 1, steps: 9}"});
    Strings lines;
    OpenProgress progress;
    progress.remark = [&](const std::string& line) { lines.push_back(line); };
    progress.trains = trains;
    OpenData(recipe, ShapeFor(recipe), 1, 0, recipe.data.valid, progress);
    return lines;
  };
  const auto has = [](const Strings& lines, const std::string& file) {
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find("documents of " + file + " is longer") != std::string::npos;
    });
  };
  const Strings trained = said(Source(other), true), evaluated = said(Source(other), false);
  EXPECT_EQ(has(trained, path), 1);
  EXPECT_EQ(has(trained, other), 1);
  EXPECT_EQ(has(evaluated, path), 0);
  EXPECT_EQ(has(evaluated, other), 1);
  EXPECT_EQ(has(said("{fraction: 0.5}", false), path), 1);
}

TEST(PackingTest, SaysHowMuchIsCutAndDropped) {
  const std::string path = Write("long", Joined(Documents(10, 6, 6, true)) + std::string(40, 'x') +
                                             ".." + std::string(20, 'y'));
  const auto train = [&](int world, const std::string& too_long, std::string* said) {
    return testing::TrainRanks(
        world,
        Tiny(UnusedPath("long_run"), {"data={train: " + Source(path) + ", packing: samples}",
                                      "data.too_long=" + too_long, "train.steps=1"}),
        said);
  };
  std::string said;
  for (const std::string& end : train(2, "error", nullptr)) {
    EXPECT_EQ(end, "4 data: " + path +
                       ", byte 60: a document of 41 tokens, but a row has data.seq_len = 16 (the "
                       "first of 2 that do not fit; the longest has 41): give data.too_long: cut "
                       "or drop, or a longer data.seq_len");
  }
  EXPECT_EQ(train(2, "cut", &said), Strings(2, "0 "));
  const std::string all = " of the 13 documents of " + path;
  EXPECT_NE(said.find("data.too_long: 2" + all +
                      " are longer than data.seq_len = 16: cut, 29 tokens less\n"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("data: 1" + all + " has one token, which predicts nothing: left out\n"),
            std::string::npos)
      << said;
  // Ten of six tokens in five rows, and two of 16.
  EXPECT_NE(said.find("data: 0.714 epochs of 92 tokens in 12 documents, which fill 82.1 % of 7 "
                      "rows\n"),
            std::string::npos)
      << said;
  EXPECT_EQ(train(1, "drop", &said), Strings(1, "0 "));
  EXPECT_NE(said.find("data.too_long: 2" + all +
                      " are longer than data.seq_len = 16: dropped, 61 tokens less\n"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("data: 1 epochs of 60 tokens in 10 documents, which fill 75.0 % of 5 rows\n"),
            std::string::npos)
      << said;
}

// cuDNN's attention would look across them.
TEST(PackingTest, GpusKeepDocumentsApart) {
  const auto recipe = [](const std::string& packing) {
    return Tiny("no", {"data.train=" + Source("x"), "data.packing=" + packing,
                       "fsdp.mixed_precision.param_dtype=bf16"});
  };
  for (const char* packing : {"samples", "none"}) {
    const Recipe packed = recipe(packing);
    EXPECT_EQ(AttentionToPlan(packed, ShapeFor(packed), DeviceType::kCuda), AttentionBackend::kOwn);
    EXPECT_TRUE(SessionOptionsFor(packed, HostPlacement::InOrder(1, 1), 1).executor.documents);
  }
  const Recipe windows = recipe("windows");
  EXPECT_NE(AttentionToPlan(windows, ShapeFor(windows), DeviceType::kCuda), AttentionBackend::kOwn);
  EXPECT_FALSE(SessionOptionsFor(windows, HostPlacement::InOrder(1, 1), 1).executor.documents);
}

// Files of tokens may say what ends their documents; where they do not, nothing else does.
TEST(PackingTest, NeedsAnEndOfText) {
  const std::string path = UnusedPath("raw.bin");
  std::ofstream(path, std::ios::binary) << std::string(200, '\1');
  const Recipe recipe = Tiny(
      UnusedPath("raw_run"),
      {"data.train={source: tokens, paths: [" + path + "], dtype: uint16}", "data.packing=none"});
  EXPECT_EQ(testing::TrainRanks(1, recipe),
            Strings{"2 data.train.eot: data.packing `none` needs an end-of-text token, and " +
                    path + " names none: give data.train.eot"});
}

}  // namespace
}  // namespace fsdp
