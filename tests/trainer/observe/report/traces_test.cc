#include "trainer/observe/report/traces.h"

#include <gtest/gtest.h>

#include "tests/trainer/observe/report/run_directory_files.h"

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

}  // namespace
}  // namespace fsdp
