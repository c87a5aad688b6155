// Views of a run: TensorBoard's files, the report and the live bar.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "tests/e2e/run_binary.h"
#include "tests/trainer/observe/event_reader.h"

namespace fsdp::e2e {
namespace {

// Each record of metrics.jsonl is there once, whatever was stopped and resumed.
void ExpectTheMetrics(const std::string& run_dir) {
  std::vector<std::pair<int64_t, float>> losses, rates, evals;
  for (const Json& record : ReadMetrics(run_dir)) {
    const auto value = [&](const char* key) {
      return std::pair(record["step"].get<int64_t>(),
                       static_cast<float>(record[key].get<double>()));
    };
    if (record["kind"] == "step") {
      losses.push_back(value("loss"));
      rates.push_back(value("lr"));
    }
    if (record["kind"] == "eval") evals.push_back(value("loss"));
  }
  EXPECT_FALSE(losses.empty() || evals.empty());
  EXPECT_EQ(ReadScalar(run_dir, "train/loss"), losses);
  EXPECT_EQ(ReadScalar(run_dir, "train/lr"), rates);
  EXPECT_EQ(ReadScalar(run_dir, "eval/loss"), evals);
}

std::vector<std::string> EventFiles(const Job& job) {
  std::vector<std::string> paths;
  for (const std::string& name : job.dir().List()) {
    if (name.find("tfevents") != std::string::npos) paths.push_back(job.dir() / name);
  }
  return paths;
}

TEST(TensorBoard, ReadsAsOneRunHoweverOftenItWasResumed) {
  Job job;
  const Strings settings = {
      "eval={every: 2, steps: 2, sample: {prompt: 'a', max_tokens: 3}}",
      "data.train.paths=[" + job.dir().Write("text", std::string(3000, 'a')) + "]",
      "data.train.source=text",
      "model.vocab_size=256",
      "data.valid={fraction: 0.2}",
      "checkpoint={every: 4, keep_last: 0}"};
  const auto train = [&](const Strings& more) {
    Strings all = settings;
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = job.Train(all);
    ASSERT_EQ(outcome.code, 0) << outcome.Text();
  };
  train({});
  ExpectTheMetrics(job.run_dir());
  std::map<std::string, std::vector<int64_t>> texts;  // Steps by tag.
  ASSERT_EQ(EventFiles(job).size(), 1u);
  for (const TensorBoardEvent& event : ReadEvents(EventFiles(job)[0])) {
    for (const auto& [tag, text] : event.texts) texts[tag].push_back(event.step);
    if (event.texts.count("recipe") > 0) {
      EXPECT_NE(event.texts.at("recipe").find("\n    model:\n"), std::string::npos);
    }
  }
  EXPECT_EQ(texts, (std::map<std::string, std::vector<int64_t>>{{"recipe", {0}},
                                                                {"sample", {2, 4, 6, 8, 10}}}));
  EXPECT_EQ(OfKind(ReadMetrics(job.run_dir()), "sample").size(), 5u);

  train({"checkpoint.resume=4", "train.steps=12"});
  ExpectTheMetrics(job.run_dir());
  EXPECT_EQ(ReadScalar(job.run_dir(), "train/loss").size(), 12u);
  EXPECT_EQ(EventFiles(job).size(), 2u);

  // Without it nothing is written, and what is no longer true goes.
  train({"checkpoint.resume=8", "train.steps=12", "log.tensorboard=false"});
  EXPECT_EQ(ReadScalar(job.run_dir(), "train/loss").size(), 8u);
  EXPECT_EQ(EventFiles(job).size(), 2u);
}

TEST(TensorBoard, StartingOverSetsTheOldFilesAside) {
  Job job;
  ASSERT_EQ(job.Train({"checkpoint.every=null"}).code, 0);
  const auto first = ReadScalar(job.run_dir(), "train/loss");
  EXPECT_EQ(first.size(), 10u);
  ASSERT_EQ(job.Train({"checkpoint.every=null"}).code, 0);
  EXPECT_EQ(ReadScalar(job.run_dir(), "train/loss"), first);
  EXPECT_EQ(ReadScalar(job.run_dir() + "/metrics.1.tensorboard", "train/loss"), first);
}

// Spans of two ranks: what the transports count is what the trace's collectives say.
TEST(Trace, SpansSayUnitPassMicroBatchAndBytes) {
  Job job;
  const Outcome outcome = job.Launch(2, {"log.trace_steps=[3]", "train.micro_batch_size=1"});
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  const Json trace = Json::parse(ReadFile(job.run_dir() + "/traces/step_3_rank_0.json"));
  std::map<std::string, int64_t> bytes;                // By collective.
  std::map<std::string, std::set<std::string>> parts;  // By operation.
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const std::string name = event["name"];
    const Json args = event.value("args", Json::object());
    bytes[name] += args.value("bytes", 0);
    parts[name].insert(args.value("unit", "") + " " + args.value("pass", "") + " " +
                       std::to_string(args.value("micro_batch", -1)));
  }
  const Json counted = OfKind(ReadMetrics(job.run_dir()), "step").at(2)["communication"];
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
    EXPECT_EQ(bytes[kind], counted[kind + std::string("_bytes")].get<int64_t>()) << kind;
    EXPECT_GT(bytes[kind], 0);
  }
  using Set = std::set<std::string>;
  Set runs, gathers{"root forward 0"}, reductions, updates{"root update -1"};
  for (const std::string m : {"0", "1"}) {
    for (const std::string block : {"h.0", "h.1"}) {
      for (const std::string pass : {" forward ", " backward "}) gathers.insert(block + pass + m);
      reductions.insert(block + " backward " + m);
      updates.insert(block + " update -1");
    }
    reductions.insert("root backward " + m);
  }
  EXPECT_EQ(parts["all_gather"], gathers);
  EXPECT_EQ(parts["reduce_scatter"], reductions);
  EXPECT_EQ(parts["all_reduce"], Set{"  -1"});
  EXPECT_EQ(parts["adamw"], updates);
  EXPECT_TRUE(parts["linear_forward"].contains("h.1 forward 1")) << Json(parts["linear_forward"]);
  EXPECT_GT(bytes["linear_forward"], 0);
}

struct Noted {
  int64_t step;
  std::string what;
  double z;
  bool said;  // On the console: of norms alone those above four medians.
};

// Worked out from the step records of one start: what lies more than `most` deviations above the
// 128 steps before, of which there are 32 at least.
std::vector<Noted> SpikesOf(const std::vector<Json>& steps, double most) {
  std::vector<Noted> spikes;
  for (size_t i = 32; i < steps.size(); ++i) {
    for (const char* what : {"loss", "grad_norm"}) {
      double n = 0, sum = 0, squares = 0;
      std::vector<double> before;
      for (size_t k = i < 128 ? 0 : i - 128; k < i; ++k) {
        const double value = steps[k][what];
        n += 1;
        sum += value;
        squares += value * value;
        before.push_back(value);
      }
      std::sort(before.begin(), before.end());
      const bool said = what == std::string("loss") ||
                        steps[i][what].get<double>() > 4 * before[before.size() / 2];
      const double deviation = std::sqrt((squares - sum * sum / n) / (n - 1));
      const double z = (steps[i][what].get<double>() - sum / n) / deviation;
      if (z > most) spikes.push_back({steps[i]["step"], what, z, said});
    }
  }
  return spikes;
}

TEST(Spikes, AreWhatLiesAboveTheStepsBefore) {
  Job job;
  const auto train = [&](const Strings& more) {
    Strings all = {"optimizer.lr=0", "log.spike_z=2", "checkpoint.every=100"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = job.Train(all);
    EXPECT_EQ(outcome.code, 0) << outcome.Text();
    return outcome.out;
  };
  const auto expect = [&](const std::vector<Json>& records, const std::string& out) {
    const std::vector<Noted> want = SpikesOf(OfKind(records, "step"), 2);
    const std::vector<Json> got = OfKind(records, "spike");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i]["step"], want[i].step);
      EXPECT_EQ(got[i]["what"], want[i].what);
      EXPECT_NEAR(got[i]["z"].get<double>(), want[i].z, 1e-3);
      const std::string line = "step " + std::to_string(want[i].step) + ": " + want[i].what + " ";
      EXPECT_EQ(out.find(line) != std::string::npos, want[i].said) << line << out;
    }
  };
  const std::string out = train({"train.steps=200"});
  std::vector<Json> records = ReadMetrics(job.run_dir());
  EXPECT_GT(OfKind(records, "spike").size(), 2u);
  expect(records, out);
  // A start knows its own steps alone.
  const std::string more = train({"train.steps=300"});
  records = ReadMetrics(job.run_dir());
  const auto resume = std::find_if(records.begin(), records.end(),
                                   [](const Json& r) { return r["kind"] == "resume"; });
  expect({resume, records.end()}, more);
  job.RunDir("off");
  train({"train.steps=200", "log.spike_z=0"});
  EXPECT_TRUE(OfKind(ReadMetrics(job.run_dir()), "spike").empty());
}

TEST(Report, DrawsRunsAndNamesThePage) {
  Job job;
  ASSERT_EQ(job.Train({"log.trace_steps=[3]"}).code, 0);
  const std::string first = job.run_dir();
  Outcome outcome = Call({"report", first});
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  EXPECT_EQ(outcome.out.find(first + "/report.html: "), 0u) << outcome.out;
  const std::string page = ReadFile(first + "/report.html");
  for (const char* text : {R"("id": "loss")", "Time by phase", "Operations of traced steps",
                           "linear_backward", "optimizer.lr", ">done<"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  // A run that holds a report goes on being a run.
  EXPECT_EQ(job.Train({"train.steps=12"}).code, 0);

  ASSERT_EQ(job.Train({"run.dir=" + job.RunDir("other"), "optimizer.lr=0.5"}).code, 0);
  const std::string out = job.dir() / "both.html";
  outcome = Call({"report", first, job.run_dir(), "--out", out});
  ASSERT_EQ(outcome.code, 0) << outcome.Text();
  EXPECT_NE(ReadFile(out).find("<td class=\"k\">optimizer.lr</td><td class=\"v\">0.01</td><td "
                               "class=\"v\">0.5</td>"),
            std::string::npos);
}

// Whatever the page's name stands for, only a file is replaced.
TEST(Report, WritesToWhatIsThereAndReplacesFilesAlone) {
  const TempDir dir;
  dir.Write("metrics.jsonl", "");
  const auto report = [&](const std::string& out) {
    return Call({"report", dir.path(), "--out", out});
  };
  const std::string file = dir.Write("page.html", "old");
  ASSERT_EQ(::symlink("page.html", (dir / "link").c_str()), 0);
  ASSERT_EQ(::symlink("later.html", (dir / "dangling").c_str()), 0);
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0666), 0);
  ASSERT_EQ(::mkdir((dir / "directory").c_str(), 0777), 0);

  EXPECT_EQ(report(dir / "link").code, 0);
  EXPECT_EQ(ReadFile(file).find("<!"), 0u) << ReadFile(file).substr(0, 100);
  EXPECT_EQ(report(dir / "dangling").code, 0);
  EXPECT_EQ(ReadFile(dir / "later.html").find("<!"), 0u);
  struct stat status {};
  for (const char* link : {"link", "dangling"}) {
    ASSERT_EQ(::lstat((dir / link).c_str(), &status), 0);
    EXPECT_TRUE(S_ISLNK(status.st_mode)) << link;
  }

  // A run's own files, under whatever name, are no place for it.
  ASSERT_EQ(::symlink("metrics.jsonl", (dir / "records").c_str()), 0);
  ASSERT_EQ(::mkdir((dir / "checkpoints").c_str(), 0777), 0);
  for (const char* own : {"metrics.jsonl", "records", "recipe.yaml", "checkpoints/latest"}) {
    const Outcome refused = report(dir / own);
    EXPECT_EQ(refused.code, 5) << own;
    EXPECT_NE(refused.err.find("is the run's own, not a page"), std::string::npos) << refused.err;
  }
  EXPECT_EQ(ReadFile(dir / "metrics.jsonl"), "");
  ASSERT_EQ(::mkfifo((dir / "report.html").c_str(), 0666), 0);
  const Outcome unread = Call({"report", dir.path()});
  EXPECT_EQ(unread.code, 5);
  EXPECT_NE(unread.err.find("report.html: is a pipe, not a file"), std::string::npos) << unread.err;

  std::string read;
  std::thread reader([&] { read = ReadFile(dir / "pipe"); });
  EXPECT_EQ(report(dir / "pipe").code, 0);
  reader.join();
  EXPECT_EQ(read.find("<!"), 0u);
  ASSERT_EQ(::lstat((dir / "pipe").c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
  // A double of /dev/null, for who may make one.
  if (::mknod((dir / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0) {
    report(dir / "null");  // Works where the file system has devices.
    ASSERT_EQ(::lstat((dir / "null").c_str(), &status), 0);
    EXPECT_TRUE(S_ISCHR(status.st_mode));
    ASSERT_EQ(::unlink((dir / "null").c_str()), 0);
  }

  const Outcome refused = report(dir / "directory");
  EXPECT_EQ(refused.code, 5);
  EXPECT_EQ(refused.err, dir / "directory" + ": is a directory: give the name of a file\n");
  for (const std::string& name : dir.List()) {
    EXPECT_EQ(name.find("-tmp"), std::string::npos) << name;
  }
}

TEST(Report, SaysWhatToGiveInstead) {
  const TempDir dir;
  Outcome outcome = Call({"report", dir / "none"});
  EXPECT_EQ(outcome.code, 5) << outcome.Text();
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, (dir / "none") +
                             ": no such directory; give a run directory, such as "
                             "runs/<run.name>\n");
  dir.Write("metrics.jsonl", "");
  outcome = Call({"report", dir.path(), "--out", dir / "none/page.html"});
  EXPECT_EQ(outcome.code, 5) << outcome.Text();
  EXPECT_NE(outcome.err.find(dir / "none/page.html"), std::string::npos) << outcome.err;
  EXPECT_EQ(Call({"report"}).code, 2);
}

// All that the binary writes to a terminal of its own, without the \r that it puts before \n.
std::string OnTerminal(const Strings& arguments, const Variables& environment) {
  winsize size{};
  size.ws_col = 100;
  size.ws_row = 24;
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    std::string binary = "cmd/fsdp-train";
    argv.push_back(binary.data());
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = ::read(terminal, buffer, sizeof(buffer))) > 0;) {
    out.append(buffer, static_cast<size_t>(n));
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << out;
  for (size_t at = 0; (at = out.find("\r\n", at)) != std::string::npos;) out.erase(at, 1);
  return out;
}

TEST(Console, ALiveBarOnATerminal) {
  Job job;
  const std::string bar = "step 10/10  ▕████";
  std::string out =
      OnTerminal(job.Flags(), {{"TERM", "xterm"}, {"LC_ALL", "C.UTF-8"}, {"NO_COLOR", "1"}});
  EXPECT_NE(out.find(bar), std::string::npos) << out;
  EXPECT_EQ(out.substr(out.size() - 4), "\r\033[K") << out;  // And away at the end.
  EXPECT_NE(out.find("\033[Kstep 10/10  loss "), std::string::npos) << out;
  EXPECT_EQ(out.find("\033[3"), std::string::npos) << out;
  out = OnTerminal(job.Flags({"run.dir=" + job.RunDir("dumb")}), {{"TERM", "dumb"}});
  EXPECT_EQ(out.find('\r'), std::string::npos) << out;
  EXPECT_EQ(out.find('\033'), std::string::npos) << out;
}

// The ranks write to pipes, and the launcher to the terminal: rank 0's bar, below all lines.
TEST(Console, ALiveBarOfALauncher) {
  Job job;
  const Variables terminal = {{"TERM", "xterm"}, {"LC_ALL", "C.UTF-8"}};
  const std::string logs = job.dir() / "logs";
  std::string out = OnTerminal(
      job.LaunchArguments(2, {"run.dir=" + job.RunDir("launched")}, {"--log-dir", logs}), terminal);
  EXPECT_NE(out.find("step 10/10  ▕\033[32m████"), std::string::npos) << out;
  EXPECT_EQ(out.find("] step 10/10  ▕"), std::string::npos) << out;  // Without a rank.
  EXPECT_NE(out.find("[0] step 10/10  loss "), std::string::npos) << out;
  // Each is taken away before a line: only what is erased stands between two ends of lines. Lines
  // that the launcher reads together follow one another without a bar.
  for (size_t at = 0; (at = out.find("▕", at)) != std::string::npos; ++at) {
    EXPECT_LT(out.find("\r\033[K", at), out.find('\n', at)) << out;
  }
  EXPECT_EQ(ReadFile(logs + "/rank_0.log").find('\r'), std::string::npos);
  EXPECT_EQ(ReadFile(logs + "/rank_0.log").find("▕"), std::string::npos);

  // Nor has a rank one whose launcher has none.
  Variables dumb = terminal;
  dumb["TERM"] = "dumb";
  dumb["FSDP_TRAIN_TERMINAL"] = "/dev/tty";
  out = OnTerminal(job.LaunchArguments(2, {"run.dir=" + job.RunDir("dumb")}), dumb);
  EXPECT_EQ(out.find('\r'), std::string::npos) << out;
  EXPECT_EQ(out.find('\033'), std::string::npos) << out;
}

// Its ranks have terminals of its own making, whatever it writes to.
TEST(Console, NoBarBelowMpirun) {
  Job job;
  const std::string out = OnTerminal(job.Flags(), {{"TERM", "xterm"},
                                                   {"OMPI_COMM_WORLD_RANK", "0"},
                                                   {"OMPI_COMM_WORLD_SIZE", "1"},
                                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_EQ(out.find('\r'), std::string::npos) << out;
  EXPECT_EQ(out.find('\033'), std::string::npos) << out;
}

}  // namespace
}  // namespace fsdp::e2e
