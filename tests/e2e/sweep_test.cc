// The output of `simulate`: the table and the files of a sweep, the picture of a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/run_binary.h"
#include "trainer/core/units.h"

namespace fsdp::e2e {
namespace {

Strings Simulate(const Job& job, const Strings& flags) {
  Strings all = {"simulate", "--config", job.recipe(), "--hardware",
                 "configs/hardware/a100-80gb.yaml"};
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

std::string FileOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Sweep, LeavesTablePageAndTheObjectsOfSingleRuns) {
  Job job;
  const std::string out = job.dir() / "swept";
  const Outcome swept =
      Call(Simulate(job, {"--world-size", "1", "--sweep", "world_size=1,2", "--sweep",
                          "train.activation_checkpointing=none,full", "--out", out}));
  ASSERT_EQ(swept.code, 0) << swept.Text();
  EXPECT_EQ(std::count(swept.out.begin(), swept.out.end(), '\n'), 5) << swept.out;
  EXPECT_NE(swept.err.find("4 of 4: world_size=2 train.activation_checkpointing=full: "),
            std::string::npos)
      << swept.err;
  const Json points = Json::parse(FileOf(out + "/sweep.json"));
  ASSERT_EQ(points.size(), 4);
  Json last = points[3];
  EXPECT_EQ(last["swept"],
            Json::parse(R"({"world_size": 2, "train.activation_checkpointing": "full"})"));
  last.erase("swept");
  const Outcome alone = Call(Simulate(
      job, {"--world-size", "2", "--set", "train.activation_checkpointing=full", "--json"}));
  EXPECT_EQ(last, Json::parse(alone.out)) << alone.Text();
  const std::string csv = FileOf(out + "/sweep.csv");
  EXPECT_TRUE(csv.starts_with(
      "world_size,train.activation_checkpointing,step_time_s,tokens_per_s,hardware_tflops,"
      "model_tflops,exposed_s,planned_gib,reserved_gib,retries,idle_ranks,fits\n"))
      << csv;
  EXPECT_NE(FileOf(out + "/sweep.html").find(R"("id": "step_time_s")"), std::string::npos);
}

TEST(Picture, ASimulatedStepIsDrawnBesideARealOne) {
  Job job;
  const std::string out = job.dir() / "simulated";
  const Outcome simulated =
      Call(Simulate(job, {"--world-size", "2", "--out", out, "--set", "fsdp.buffers=caching",
                          "--set", "fsdp.limiter=host"}));
  ASSERT_EQ(simulated.code, 0) << simulated.Text();
  const Outcome alone = Call({"report", out});
  ASSERT_EQ(alone.code, 0) << alone.Text();
  const std::string page = FileOf(out + "/report.html");
  for (const char* part : {">host<", ">compute<", "fill:url(#hatched)", "memory, up to"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  ASSERT_EQ(job.Train({"log.trace_steps=[1]"}).code, 0);
  const std::string both = job.dir() / "both.html";
  const Outcome beside = Call({"report", job.run_dir(), out, "--out", both});
  ASSERT_EQ(beside.code, 0) << beside.Text();
  const std::string text = FileOf(both);
  EXPECT_NE(text.find("<h3>" + out + "</h3>"), std::string::npos);
  EXPECT_NE(text.find("<h3>" + job.run_dir() + "</h3>"), std::string::npos);
  EXPECT_NE(text.find("<h2>Curves</h2>"), std::string::npos);
}

// The bytes of a trace's counter of memory, by name.
std::vector<int64_t> MemoryIn(const std::string& trace, const std::string& name) {
  std::vector<int64_t> bytes;
  const Json events = Json::parse(FileOf(trace)).at("traceEvents");
  for (const Json& event : events) {
    if (event["ph"] == "C") bytes.push_back(event["args"][name].get<int64_t>());
  }
  return bytes;
}

TEST(Picture, PlannedMemoryIsDrawnUpToThePlan) {
  Job job;
  const std::string out = job.dir() / "simulated";
  const Outcome simulated = Call(Simulate(job, {"--world-size", "2", "--out", out, "--json"}));
  ASSERT_EQ(simulated.code, 0) << simulated.Text();
  ASSERT_EQ(job.Train({"log.trace_steps=[2]"}).code, 0);
  const Outcome plan = Call({"plan", "--config", job.recipe(), "--world-size", "1", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.Text();
  int64_t most = 0;
  for (const auto& [trace, planned] :
       {std::pair(out + "/traces/step_3.json", Json::parse(simulated.out)),
        std::pair(job.run_dir() + "/traces/step_2.json", Json::parse(plan.out))}) {
    const auto peak = planned["memory"]["allocated_peak"].get<int64_t>();
    const std::vector<int64_t> used = MemoryIn(trace, "allocated");
    ASSERT_GT(used.size(), 10u) << trace;
    const auto [least, highest] = std::minmax_element(used.begin(), used.end());
    EXPECT_LE(*highest, peak) << trace;
    EXPECT_LT(*least, *highest) << trace;
    EXPECT_GT(*highest, peak / 2) << trace;
    for (const int64_t bytes : MemoryIn(trace, "reserved")) EXPECT_EQ(bytes, peak) << trace;
    most = std::max(most, peak);
  }
  const std::string page = job.dir() / "both.html";
  const Outcome report = Call({"report", job.run_dir(), out, "--out", page});
  ASSERT_EQ(report.code, 0) << report.Text();
  const std::string scale = "memory, up to " + HumanBytes(most);  // One for both.
  const std::string text = FileOf(page);
  const size_t first = text.find(scale);
  ASSERT_NE(first, std::string::npos) << scale;
  EXPECT_NE(text.find(scale, first + 1), std::string::npos);
}

// The table, the object and the page mark the point; bytes have the unit that `plan` prints.
TEST(Sweep, APointThatDoesNotFitIsMarked) {
  Job job;
  const std::string out = job.dir() / "swept";
  const Strings flags = {"--world-size", "1", "--sweep", "run.memory_limit=1024,8589934592",
                         "--out",        out};
  const Outcome swept = Call(Simulate(job, flags));
  ASSERT_EQ(swept.code, 0) << swept.Text();
  for (const char* part : {"step, s", "planned, GiB", "waiting for ranks, s", "  does not fit\n",
                           "           yes\n"}) {
    EXPECT_NE(swept.out.find(part), std::string::npos) << part << "\n" << swept.out;
  }
  EXPECT_NE(swept.err.find("1 of 2: run.memory_limit=1024: "), std::string::npos) << swept.err;
  EXPECT_NE(swept.err.find(", does not fit\n"), std::string::npos) << swept.err;
  const Json points = Json::parse(FileOf(out + "/sweep.json"));
  EXPECT_FALSE(points[0]["fits"].get<bool>());
  EXPECT_TRUE(points[1]["fits"].get<bool>());
  const std::string csv = FileOf(out + "/sweep.csv"), page = FileOf(out + "/sweep.html");
  EXPECT_NE(csv.find(",no\n"), std::string::npos) << csv;
  EXPECT_NE(page.find(R"("name": "does not fit", "colour": "c0", "style": "hollow")"),
            std::string::npos);
  EXPECT_NE(page.find(R"("name": "fits", "colour": "c0", "style": "dots")"), std::string::npos);
  EXPECT_NE(page.find("<tr class=\"dim\"><td>1024</td>"), std::string::npos);
  EXPECT_NE(page.find("<tr><td>8589934592</td>"), std::string::npos);
  EXPECT_NE(page.find("Hollow points and grey rows do not fit into memory."), std::string::npos);
  for (const char* title :
       {R"("title": "waiting for ranks", "unit": "s")", R"("title": "planned", "unit": "GiB")"}) {
    EXPECT_NE(page.find(title), std::string::npos) << title;
  }
  for (const std::string& text : {swept.out, csv, page}) {
    EXPECT_EQ(text.find("_gb"), std::string::npos) << text;
  }
}

TEST(Sweep, WordsThatAreNoNumbersStayWords) {
  Job job;
  const Outcome swept =
      Call(Simulate(job, {"--world-size", "1", "--sweep", "run.name=nan,inf,infinity", "--json"}));
  ASSERT_EQ(swept.code, 0) << swept.Text();
  const Json points = Json::parse(swept.out);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(points[i]["swept"]["run.name"], Strings({"nan", "inf", "infinity"})[i]) << swept.out;
  }
}

TEST(Sweep, MistakesComeBeforeTheFirstRun) {
  Job job;
  const auto refused = [&](const Strings& sweep, const std::string& why) {
    Strings flags = {"--world-size", "2"};
    for (const std::string& one : sweep) flags.insert(flags.end(), {"--sweep", one});
    const Outcome outcome = Call(Simulate(job, flags));
    EXPECT_EQ(outcome.code, 2) << outcome.Text();
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.Text();
    EXPECT_EQ(outcome.err.find("1 of "), std::string::npos) << outcome.Text();
  };
  refused({"=1"}, "no key");
  refused({"optimizer.lr="}, "a value is missing");
  refused({"optimizer.lr=1e-3", "optimizer.lr=1e-4"}, "swept twice");
  refused({"optimizer.lr=1e-3", "optimizer.ls=1e-4"}, "optimizer.lr");
  refused({"world_size=2,12"}, "12");
  refused({"fsdp.shard_size=1,3"}, "shard_size");
  for (const char* world : {"0", "-1", "1.5", "nan", "inf", "1e308", "1048577"}) {
    refused({std::string("world_size=") + world}, std::string("world_size: ") + world);
  }
}

}  // namespace
}  // namespace fsdp::e2e
