// The page as a browser takes it apart: what it may hold, and that nothing of a run gets out of its
// place.
#include "trainer/observe/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "tests/testing/json.h"
#include "tests/trainer/observe/report/run_directory_files.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/utf8.h"
#include "trainer/observe/report/run_history.h"

namespace fsdp {
namespace {

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

// Every tag of the page is one of ours and is closed, in order; every character is UTF-8.
void ExpectGoodHtml(const std::string& page) {
  static const std::set<std::string> kVoid = {"meta", "!DOCTYPE"};
  static const std::set<std::string> kOurs = {
      "html", "head", "title", "style", "body",    "h1",      "h2",     "h3",     "p",       "div",
      "span", "b",    "i",     "code",  "button",  "table",   "thead",  "tbody",  "tr",      "th",
      "td",   "ul",   "li",    "pre",   "details", "summary", "footer", "script", "noscript"};
  for (std::string_view rest = page; !rest.empty();) {
    const size_t length = Utf8Length(rest);
    ASSERT_GT(length, 0u);
    rest.remove_prefix(length);
  }
  std::vector<std::string> open;
  for (size_t at = 0; (at = page.find('<', at)) != std::string::npos;) {
    const size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /\n", 1));
    at = end;
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ(tag.substr(1), open.back()) << page.substr(at - 200, 300);
      open.pop_back();
      continue;
    }
    if (kVoid.count(name) > 0 || tag.back() == '/') continue;
    ASSERT_EQ(kOurs.count(name), 1u) << tag;
    open.push_back(name);
    if (name == "script" || name == "style") at = page.find("</" + name + ">", at);
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(Count(page, "<script"), 2);
  // Nothing that is fetched.
  for (const char* part :
       {"http://", "https://", "src=", "href=", "url(", "@import", "<link", "<img"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

testing::Json DataOf(const std::string& page, const char* part = "plots") {
  const std::string begin = "id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return testing::Json::parse(page.substr(at, page.find("</script>", at) - at))[part];
}

std::string WholeRun(const std::string& name, const std::string& run_name) {
  const std::string directory = FreshDirectory(name);
  std::string lines = Lines({RunOf(run_name, 50)});
  for (int64_t step = 1; step <= 50; ++step) lines += Lines({Step(step)});
  lines += Lines({EvalRecord{50, 1.5}, SampleRecord{50, "Once ", "upon"}, PauseRecord{50, 1, 2, 3},
                  CheckpointRecord{50, "c", 3, 4}, EndRecord{"done"}});
  Put(directory + "/metrics.jsonl", lines);
  Put(directory + "/recipe.yaml", "run: {name: " + name + "}\noptimizer: {lr: 1e-3}\n");
  Put(directory + "/provenance.json", R"({"git": "abc"})");
  Put(directory + "/traces/step_5.json", R"({"traceEvents": [
    {"ph": "X", "name": "linear", "pid": 0, "tid": 1, "ts": 0.0, "dur": 500000.0}]})");
  return directory;
}

TEST(ReportPage, OneRun) {
  const std::string directory = WholeRun("one", "my run");
  const WrittenReport report = WriteReport({directory}, "");
  EXPECT_EQ(report.path, directory + "/report.html");
  EXPECT_EQ(report.records, 56);
  EXPECT_EQ(report.broken, 0);
  const std::string page = ReadWholeFile(report.path);
  EXPECT_EQ(report.bytes, static_cast<int64_t>(page.size()));
  ExpectGoodHtml(page);
  for (const char* text : {"<h1>my run</h1>", "Time by phase", "waiting for communication",
                           "Operations of traced steps", "<b>Once </b>upon", "optimizer.lr", "abc",
                           "50 of 50", ">done<", "1.5000 at step 50", "1 checkpoint,"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  EXPECT_NE(page.find("waiting for offload"), std::string::npos);
  EXPECT_EQ(page.find("differ in"), std::string::npos);
  EXPECT_EQ(page.find("class=\"note\""), std::string::npos);
  // The script draws what was recorded.
  const auto data = DataOf(page);
  std::vector<std::string> ids;
  for (const auto& plot : data) ids.push_back(plot["id"]);
  EXPECT_EQ(ids, (std::vector<std::string>{"loss", "lr", "grad_norm", "tokens_per_s", "step_time",
                                           "mfu", "tflops", "memory"}));
  EXPECT_EQ(data[0]["curves"][0]["x"].size(), 50u);
  EXPECT_NEAR(data[0]["curves"][0]["y"][3].get<double>(), 3.0, 1e-5);
  // Where its steps lie, by tokens and by time: half a second each, and the pause behind them.
  const auto axes = DataOf(page, "runs");
  ASSERT_EQ(axes.size(), 1u);
  for (const char* axis : {"tokens", "time"}) {
    EXPECT_NE(page.find("data-axis=\"" + std::string(axis) + "\""), std::string::npos);
    EXPECT_EQ(axes[0][axis]["x"], data[0]["curves"][0]["x"]) << axis;
    EXPECT_TRUE(std::is_sorted(axes[0][axis]["y"].begin(), axes[0][axis]["y"].end())) << axis;
  }
  EXPECT_EQ(axes[0]["tokens"]["y"].back(), Step(50).tokens);
  EXPECT_EQ(axes[0]["time"]["y"].back(), 25);
}

TEST(ReportPage, SeveralRunsAndWhatTheyDifferIn) {
  const std::string a = WholeRun("a", "same"), b = WholeRun("b", "same");
  Put(b + "/recipe.yaml", "run: {name: b}\noptimizer: {lr: 2e-3, eps: 1}\n");
  std::filesystem::remove_all(b + "/traces");
  const std::string out = ::testing::TempDir() + "/several.html";
  EXPECT_EQ(WriteReport({a, b}, out).path, out);
  const std::string page = ReadWholeFile(out);
  ExpectGoodHtml(page);
  const size_t at = page.find("What their recipes differ in");
  const std::string table = page.substr(at, page.find("</table>", at) - at);
  EXPECT_EQ(Count(table, "<tr>"), 4);  // A head, run.name, optimizer.lr, optimizer.eps.
  EXPECT_NE(table.find("optimizer.eps</td><td class=\"v\">–</td><td class=\"v\">1</td>"),
            std::string::npos)
      << table;
  // Names that are the same are told apart by directory.
  EXPECT_NE(table.find(a + "</span>"), std::string::npos);
  EXPECT_NE(table.find(b + "</span>"), std::string::npos);
  const auto data = DataOf(page);
  EXPECT_EQ(data[0]["curves"][0]["colour"], "c0");
  EXPECT_EQ(data[0]["curves"][2]["colour"], "c1");
  EXPECT_EQ(data[0]["curves"][2]["run"], 1);
  // A colour a set.
  std::set<std::string> colours;
  for (const auto& curve : data[0]["curves"]) {
    if (curve["style"] == "dots") colours.insert(curve["colour"].get<std::string>());
  }
  EXPECT_EQ(colours, (std::set<std::string>{"c2", "c3"}));
}

TEST(ReportPage, CountsSamplesWhereASampleHasOneTarget) {
  const auto directory = [](const std::string& name, int64_t targets) {
    std::string path = FreshDirectory(name), lines = Lines({RunOf(name, 3)});
    for (int64_t step = 1; step <= 3; ++step) {
      StepRecord record = Step(step);
      record.samples = record.tokens / targets;
      lines += Lines({record});
    }
    Put(path + "/metrics.jsonl", lines);
    return path;
  };
  const std::string texts = directory("texts", 10), images = directory("images", 1);
  const auto page = [](const std::vector<std::string>& runs) {
    std::vector<RunHistory> read;
    for (const std::string& run : runs) read.push_back(ReadRun(run, 20));
    return ReportPage(read, "");
  };
  const auto expect = [&](const std::vector<std::string>& runs, const std::string& target,
                          const std::string& targets) {
    const std::string html = page(runs);
    EXPECT_EQ(DataOf(html, "targets"), targets);  // The script's name of the axis.
    EXPECT_EQ(Count(html, ">" + targets + "</button>"), 1) << targets;
    EXPECT_EQ(DataOf(html)[0]["unit"], "nats a " + target);
    EXPECT_EQ(DataOf(html)[3]["unit"], targets + " a second");
  };
  expect({texts}, "token", "tokens");
  expect({images}, "sample", "samples");
  expect({texts, images}, "token or sample", "tokens or samples");
}

TEST(ReportPage, ARunThatHasHardlyBegunOrWasKilled) {
  const std::string directory = FreshDirectory("young");
  Put(directory + "/metrics.jsonl", "");
  WriteReport({directory}, "");
  std::string page = ReadWholeFile(directory + "/report.html");
  ExpectGoodHtml(page);
  EXPECT_NE(page.find("No step is recorded yet."), std::string::npos);
  EXPECT_TRUE(DataOf(page).empty());

  Put(directory + "/metrics.jsonl", Lines({RunOf("x", 9), Step(1)}) + "garbage\n{\"kind\": \"st");
  const WrittenReport report = WriteReport({directory}, "");
  EXPECT_EQ(report.broken, 2);
  page = ReadWholeFile(report.path);
  ExpectGoodHtml(page);
  EXPECT_NE(page.find("1 broken line of metrics.jsonl is left out."), std::string::npos);
  EXPECT_NE(page.find("unfinished"), std::string::npos);
  EXPECT_NE(page.find("running, or killed"), std::string::npos);
  EXPECT_EQ(DataOf(page)[0]["id"], "loss");
}

TEST(ReportPage, NothingOfARunGetsOutOfItsPlace) {
  const std::string evil =
      "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&lt;<!-- ]]> "
      "\x01\x7f\x9b\xff\xe2\x80";
  const std::string directory = FreshDirectory("evil <i>&\"' name");
  RunRecord run = RunOf(evil, 3);
  run.device = run.started = run.version = run.git = evil;
  Put(directory + "/metrics.jsonl",
      Lines({run, ResumeRecord{0, evil}, Step(1), EvalRecord{1, 2, evil}, Step(2),
             SampleRecord{2, evil, evil}, SkippedRecord{2, evil}, CheckpointRecord{2, evil, 1, 1},
             EndRecord{evil}}));
  const std::string quoted = "\"<b>&\\\"'</script><img src=x>\"";
  Put(directory + "/recipe.yaml", quoted + ": " + quoted + "\n");
  Put(directory + "/provenance.json", "{" + quoted + ": " + quoted + "}");
  Put(directory + "/traces/step_1.json", R"({"traceEvents": [{"ph": "X", "name": )" + quoted +
                                             R"(, "pid": 0, "tid": 1, "ts": 0, "dur": 5}]})");
  const std::string other = WholeRun("good", "good");
  for (const auto& directories :
       {std::vector<std::string>{directory}, std::vector<std::string>{other, directory}}) {
    const std::string out = ::testing::TempDir() + "/evil.html";
    WriteReport(directories, out);
    const std::string page = ReadWholeFile(out);
    // The texts themselves hold "src=" and the like, harmless between tags.
    std::string bare = page;
    for (size_t at; (at = bare.find("src=x")) != std::string::npos;) bare.erase(at, 5);
    ExpectGoodHtml(bare);
    EXPECT_EQ(page.find("<img"), std::string::npos);
    EXPECT_EQ(Count(page, "</script>"), 2);
    DataOf(page);
  }
}

// Lines that a broken disk or another program may have left: no crash, and a page.
TEST(ReportPage, AnyMetricsGiveAPage) {
  const std::string directory = FreshDirectory("fuzz");
  const std::string good =
      Lines({RunOf("a", 9), Step(1), EvalRecord{1, 2, "x"}, SampleRecord{1, "p", "t"},
             PauseRecord{1, 2, 3, 4}, Step(2), CheckpointRecord{2, "c", 1, 1}, ResumeRecord{2, "c"},
             SkippedRecord{3, "r"}, EndRecord{"done"}});
  std::mt19937_64 random(20260102);
  const std::string bits = "0123456789-+.eE\"{}[],:nul\n\\\x01\xff";
  for (int i = 0; i < 300; ++i) {
    std::string text = good;
    for (uint64_t edits = 1 + random() % 8; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = bits[random() % bits.size()];
          break;
        case 1:
          text.insert(at, 1, bits[random() % bits.size()]);
          break;
        default:
          text.erase(at, 1 + random() % 20);
      }
    }
    Put(directory + "/metrics.jsonl", text);
    const std::string page = ReportPage({ReadRun(directory, 20)}, "");
    ASSERT_EQ(Count(page, "<script"), 2) << text;
    DataOf(page);
  }
}

TEST(ReportPage, StaysSmallForAnyNumberOfSteps) {
  for (const size_t runs : {1, 2, 5, 40}) {
    const size_t buckets = ReportBuckets(runs);
    RunHistory run(buckets);
    run.name = "long";
    std::mt19937_64 random(7);
    // Long enough to be thinned many times; the last bucket but one decides about the size.
    const int steps = runs == 1 ? 200000 : static_cast<int>(40 * buckets);
    for (int step = 1; step <= steps; ++step) {
      const double noise = static_cast<double>(random() >> 11) * 0x1p-53;
      for (Series* series : {&run.loss, &run.grad_norm, &run.lr, &run.step_time, &run.tokens_per_s,
                             &run.tflops, &run.mfu, &run.allocated, &run.active, &run.reserved}) {
        series->Add(999000000.0 + step, 1e-3 * noise);
      }
    }
    run.last_step = 999000000 + steps;
    const std::string page = ReportPage(std::vector<RunHistory>(runs, run), "");
    EXPECT_LT(page.size(), 3'000'000u) << runs;
    // And is no emptier than it has to be.
    EXPECT_GT(DataOf(page)[0]["curves"][0]["x"].size(), 1.9 * static_cast<double>(buckets));
  }
}

TEST(WriteReport, AnOutputThatCannotBeWritten) {
  const std::string directory = WholeRun("out", "out");
  EXPECT_THROW(WriteReport({directory}, directory + "/none/report.html"), CheckpointError);
  EXPECT_THROW(WriteReport({directory, directory + "/none"}, ""), CheckpointError);
  EXPECT_FALSE(std::filesystem::exists(directory + "/report.html"));
}

}  // namespace
}  // namespace fsdp
