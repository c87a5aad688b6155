#include "trainer/observe/report/traces.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/testing/json.h"
#include "tests/trainer/observe/report/run_directory_files.h"
#include "trainer/observe/report/report.h"

namespace fsdp {
namespace {

std::string Trace(double scale) {
  const auto event = [&](int tid, const char* name, double ts, double dur) {
    return R"({"ph": "X", "name": ")" + std::string(name) + R"(", "pid": 0, "tid": )" +
           std::to_string(tid) + R"(, "ts": )" + std::to_string(ts * scale) + R"(, "dur": )" +
           std::to_string(dur * scale) + "}";
  };
  return R"({"traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "rank 0"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "compute"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 2, "args": {"name": "gather"}},
    )" + event(1, "linear", 0, 100000) +
         "," + event(1, "linear", 200000, 300000) + "," + event(2, "linear", 0, 50000) + "," +
         event(1, "wait", 100000, 100000) + "]}";
}

TEST(ReadTraces, MeansOverTheFilesOfRank0) {
  const std::string directory = FreshDirectory("traces");
  EXPECT_FALSE(ReadTraces(directory));
  EXPECT_FALSE(ReadTraces(directory + "/none"));
  Put(directory + "/step_9.json", Trace(1));
  Put(directory + "/step_10_rank_0.json", Trace(3));
  Put(directory + "/step_10_rank_1.json", "not read");
  Put(directory + "/step_x.json", "not read");
  const auto times = ReadTraces(directory);
  ASSERT_TRUE(times);
  EXPECT_EQ(times->files, (std::vector<std::string>{"step_9.json", "step_10_rank_0.json"}));
  EXPECT_TRUE(times->notes.empty());
  EXPECT_DOUBLE_EQ(times->seconds, 1.0);
  ASSERT_EQ(times->operations.size(), 3u);
  EXPECT_EQ(times->operations[0].name, "linear");
  EXPECT_EQ(times->operations[0].stream, "compute");
  EXPECT_DOUBLE_EQ(times->operations[0].seconds, 0.8);
  EXPECT_EQ(times->operations[0].count, 2);
  EXPECT_EQ(times->operations[1].name, "wait");
  EXPECT_EQ(times->operations[2].stream, "gather");
  EXPECT_DOUBLE_EQ(times->operations[2].seconds, 0.1);
}

TEST(ReadTraces, TheLast16) {
  const std::string directory = FreshDirectory("many_traces");
  for (int step = 1; step <= 20; ++step) {
    Put(directory + "/step_" + std::to_string(step) + ".json", Trace(1));
  }
  const auto times = ReadTraces(directory);
  ASSERT_EQ(times->files.size(), 16u);
  EXPECT_EQ(times->files[0], "step_5.json");
}

// Colours of a page's bars as a browser computes them, each once; "" for one that is not drawn.
std::set<std::string> ColoursOf(const std::string& page) {
  const std::string path = ::testing::TempDir() + "/step.html";
  Put(path, page);
  std::set<std::string> colours;
  for (const auto& shape : testing::Json::parse(PrintedByNode("cascade.js " + path))) {
    if (!shape["bar"].get<bool>()) continue;
    const std::string fill = shape["fill"];
    const std::string colour =
        fill == "none" ? "none " + shape.value("stroke", std::string("none")) : fill;
    colours.insert(shape["shown"].get<bool>() ? colour : "");
  }
  return colours;
}

std::string Replaced(std::string text, const std::string& old, const std::string& with) {
  for (size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += with.size()) {
    text.replace(at, old.size(), with);
  }
  return text;
}

// The page's own rules, and such a rule as once hid the bars, leave bars and memory as they are.
TEST(StepPictures, BarsHaveTheirColoursWhateverRulesSay) {
  const std::string directory = FreshDirectory("pictures");
  Put(directory + "/simulate.json", "{}");
  std::string events = R"({"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "s"}})";
  const auto add = [&](const std::string& event) { events += ", {" + event + "}"; };
  for (const std::string pass : {"forward", "recompute", "backward", "update"}) {
    add(R"("ph": "X", "name": "linear", "tid": 1, "ts": 1, "dur": 2, "args": {"pass": ")" + pass +
        R"("})");
  }
  for (const std::string name : {"all_gather", "copy", "wait"}) {
    add(R"("ph": "X", "tid": 1, "ts": 5, "dur": 2, "name": ")" + name + "\"");
  }
  for (const std::string at : {"1", "6"}) {
    add(R"("ph": "C", "name": "m", "args": {"allocated": 5368709120, "reserved": 6442450944},)"
        R"("ts": )" +
        at);
  }
  Put(directory + "/traces/step_3.json", R"({"traceEvents": [)" + events + "]}");
  const std::string page = StaticPage("A step", StepPictures({directory}));
  EXPECT_NE(page.find("memory, up to 6.00 GiB"), std::string::npos);
  const std::set<std::string> drawn = {"#4c9be8",       "#a5cdf5",      "#2b5f9e",
                                       "#2ca02c",       "#e8833a",      "#8a8a8a",
                                       "url(#hatched)", "none #2b5f9e", "none #999"};
  EXPECT_EQ(ColoursOf(page), drawn);
  for (const char* rule :
       {"svg path { fill: none; stroke: none }", "path { fill: none }",
        "#x, [role=img] > path { fill: #fff }", "* { fill: none; stroke: red }"}) {
    EXPECT_EQ(ColoursOf(Replaced(page, "</style>", rule + std::string("\n</style>"))), drawn)
        << rule;
  }
  // An attribute would not be enough, and the script sees it.
  const std::string weak =
      Replaced(Replaced(page, "style=\"fill:none;stroke:", "fill=\"none\" stroke=\""),
               "style=\"fill:", "fill=\"");
  EXPECT_EQ(ColoursOf(weak), drawn);
  EXPECT_EQ(ColoursOf(Replaced(weak, "</style>", "svg path { fill: none }\n</style>")),
            (std::set<std::string>{"none none", "none #2b5f9e", "none #999"}));
  EXPECT_EQ(ColoursOf(Replaced(page, "</style>", "svg[role=img] { display: none }\n</style>")),
            std::set<std::string>{""});
}

}  // namespace
}  // namespace fsdp
