#include "trainer/observe/chrome_trace.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

const std::vector<RankTrace> kTraces = {{0,
                                         {{"linear", "compute", 10.5, 10.75},
                                          {"all_gather", "gather", 10.5, 10.625},
                                          {"gelu", "compute", 10.75, 11.0}}},
                                        {3, {{"reduce \"1\"", "reduce", 10.25, 10.5}}}};

TEST(ChromeTrace, TextIsWhatPerfettoReads) {
  EXPECT_EQ(ChromeTrace(std::vector<RankTrace>{{2, {{"linear", "compute", 1.0, 1.125}}}}),
            R"({"displayTimeUnit": "ms", "traceEvents": [
{"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "rank 2"}},
{"ph": "M", "name": "process_sort_index", "pid": 2, "tid": 0, "args": {"sort_index": 2}},
{"ph": "M", "name": "thread_name", "pid": 2, "tid": 1, "args": {"name": "compute"}},
{"ph": "M", "name": "thread_sort_index", "pid": 2, "tid": 1, "args": {"sort_index": 1}},
{"ph": "X", "name": "linear", "pid": 2, "tid": 1, "ts": 0.0, "dur": 125000.0}
]}
)");
}

TEST(ChromeTrace, RanksAreProcessesAndStreamsThreads) {
  const std::string path = ::testing::TempDir() + "/trace.json";
  WriteChromeTrace(path, kTraces);
  const auto trace = testing::Json::parse(ReadWholeFile(path));
  std::set<std::string> processes, threads, spans;
  std::map<std::pair<int, int>, std::string> stream_of;
  for (const auto& event : trace["traceEvents"]) {
    const std::pair<int, int> at(event["pid"], event["tid"]);
    if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
    if (event["name"] == "thread_name") {
      EXPECT_TRUE(stream_of.emplace(at, event["args"]["name"]).second);
    }
    if (event["ph"] != "X") continue;
    std::ostringstream text;
    text << event["name"].get<std::string>() << " " << at.first << " " << stream_of.at(at) << " "
         << event["ts"] << " " << event["dur"];
    spans.insert(text.str());
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 0", "rank 3"}));
  EXPECT_EQ(stream_of.size(), 3u);
  EXPECT_EQ(spans,
            (std::set<std::string>{
                "linear 0 compute 250000.0 250000.0", "all_gather 0 gather 250000.0 125000.0",
                "gelu 0 compute 500000.0 250000.0", "reduce \"1\" 3 reduce 0.0 250000.0"}));
}

TEST(ChromeTrace, SpansSayWhatOfAStepTheyAre) {
  RankTrace trace{0,
                  {{"gather", "g", 1, 2, 1, 4096},
                   {"linear", "c", 1, 2, 2},
                   {"wait", "c", 1, 2, 3},
                   {"load", "d", 1, 2, 4, 64}}};
  trace.part = [](uint64_t tag) -> StepPart {
    if (tag == 1) return {"h.0", "backward", 2};
    if (tag == 2) return {"root", "update", -1};
    if (tag == 3) return {};
    return {"", "forward", 0};
  };
  std::map<std::string, std::string> args;
  const auto read = testing::Json::parse(ChromeTrace(std::span(&trace, 1)));
  for (const auto& event : read["traceEvents"]) {
    if (event["ph"] == "X") args[event["name"]] = event.value("args", testing::Json()).dump();
  }
  EXPECT_EQ(args,
            (std::map<std::string, std::string>{
                {"gather", R"({"bytes":4096,"micro_batch":2,"pass":"backward","unit":"h.0"})"},
                {"linear", R"({"pass":"update","unit":"root"})"},
                {"wait", "null"},
                {"load", R"({"bytes":64,"micro_batch":0,"pass":"forward"})"}}));
}

TEST(ChromeTrace, NothingTracedIsStillATrace) {
  EXPECT_TRUE(testing::Json::parse(ChromeTrace({}))["traceEvents"].empty());
  EXPECT_EQ(
      testing::Json::parse(ChromeTrace(std::vector<RankTrace>{{1, {}}}))["traceEvents"].size(), 2u);
  EXPECT_THROW(WriteChromeTrace(::testing::TempDir() + "/none/t.json", {}), CheckpointError);
}

}  // namespace
}  // namespace fsdp
