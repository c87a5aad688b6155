// The real binary, seen from outside: started as a user starts it, watched through its exit code,
// its output and the files it leaves.
#ifndef FSDP_TRAIN_TESTS_E2E_RUN_BINARY_H_
#define FSDP_TRAIN_TESTS_E2E_RUN_BINARY_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/json.h"

namespace fsdp::e2e {

using Json = testing::Json;
using Strings = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// For an action that should take a second: only a hang takes longer, however loaded the machine.
constexpr std::chrono::seconds kPatience{240};

struct Outcome {
  int code = -1;  // As in a shell: 128 + signal where one ended it.
  bool timed_out = false;
  std::string out, err;
  std::string Text() const;  // All of it, for failure messages.
};

// A directory of its own, below the test's temporary one; removed with all it holds.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const;  // Its path.
  std::vector<std::string> List() const;  // Names of all entries below, sorted.

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);  // Empty where there is none.
bool Exists(const std::string& path);

// One process of the binary, in a process group of its own. Killed when this goes, or when the
// test does, and its ranks with it.
class Process {
 public:
  struct Options {
    Variables environment;         // On top of the test's, without launchers' variables.
    std::string directory;         // Working directory; empty: the test's.
    std::string output_directory;  // Keeps stdout and stderr here; empty: does not.
    std::string program = "";      // Another program, found on PATH; empty: the binary.
  };
  Process(const Strings& arguments, const Options& options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  bool Running();
  // Waits for the end. When `patience` is over, kills it and says so in the outcome.
  Outcome Wait(std::chrono::seconds patience = kPatience);
  std::string Out() const;  // So far.

 private:
  Outcome Finish(int status, bool timed_out);

  pid_t pid_ = -1;
  std::optional<Outcome> outcome_;
  std::string out_path_, err_path_;
};

std::string BinaryPath();

// The children of `launch`, by their RANK.
std::map<int, pid_t> RanksOf(pid_t launcher);

// The variables that torchrun sets for a rank, with the store on `port` of the loopback device.
Variables Torchrun(int rank, int world, int port);
int FreePort();

// Polls until `condition`; false when the patience is over.
bool Eventually(const std::function<bool()>& condition, std::chrono::seconds patience = kPatience);

// A run directory's metrics.jsonl. Throws where a line is not one JSON object; a last line without
// its end of line is left out.
std::vector<Json> ReadMetrics(const std::string& run_directory);
std::vector<Json> OfKind(const std::vector<Json>& records, const std::string& kind);
int64_t LastStep(const std::string& run_directory);  // 0: none yet.

// A model that trains a step in a millisecond, and how tests vary it.
class Job {
 public:
  Job();
  explicit Job(const std::string& recipe);  // Another one, as YAML.

  const TempDir& dir() const { return dir_; }
  std::string run_dir() const { return dir_ / run_name_; }
  std::string RunDir(const std::string& name) {
    run_name_ = name;
    return run_dir();
  }

  // The recipe's file: synthetic tokens, 10 steps of 4 x 16 tokens, no checkpoint.
  std::string recipe() const { return recipe_; }
  // The flags of a training run into run_dir() with KEY=VALUE settings.
  Strings Flags(const Strings& settings = {}) const;

  Outcome Train(const Strings& settings = {}, const Variables& environment = {}) const;
  Outcome Launch(int ranks, const Strings& settings = {}, const Strings& launch_flags = {}) const;
  Process Start(const Strings& arguments, const Variables& environment = {}) const;
  Strings LaunchArguments(int ranks, const Strings& settings,
                          const Strings& launch_flags = {}) const;

 private:
  TempDir dir_;
  std::string recipe_;
  std::string run_name_ = "run";
};

// One call of the binary.
Outcome Call(const Strings& arguments, const Variables& environment = {},
             const std::string& directory = "");

}  // namespace fsdp::e2e

#endif  // FSDP_TRAIN_TESTS_E2E_RUN_BINARY_H_
