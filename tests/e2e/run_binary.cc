#include "tests/e2e/run_binary.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

// Bazel starts tests in their runfiles.
const std::string& Binary() {
  static const std::string path = fs::absolute("cmd/fsdp-train");
  return path;
}

// Variables that a launcher of the test itself may have set are kept from the binary.
bool FromALauncher(std::string_view name) {
  for (const std::string_view prefix :
       {"RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMIX_", "TORCHELASTIC_",
        "FSDP_TRAIN_", "NO_COLOR"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

Strings EnvironmentWith(const Variables& variables) {
  Strings environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (!FromALauncher(name) && variables.count(name) == 0) environment.push_back(text);
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

std::vector<char*> Pointers(Strings& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The parent's id in /proc/<pid>/stat; 0 where the process is gone.
pid_t ParentOf(pid_t pid) {
  std::string line;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), line);
  const size_t name_end = line.rfind(") ");
  return name_end == std::string::npos ? 0 : std::atoi(line.c_str() + name_end + 4);
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0 && ParentOf(pid) == parent) children.push_back(pid);
  }
  return children;
}

}  // namespace

std::string Outcome::Text() const {
  return "exit code " + std::to_string(code) + (timed_out ? " (killed: timed out)" : "") +
         "\nstdout:\n" + out + "stderr:\n" + err;
}

TempDir::TempDir() {
  const char* parent = std::getenv("TEST_TMPDIR");
  std::string name = std::string(parent == nullptr ? "/tmp" : parent) + "/e2e_XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TempDir::Write(const std::string& name, const std::string& text) const {
  const std::string path = *this / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::vector<std::string> TempDir::List() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(path_)) {
    names.push_back(fs::relative(entry.path(), path_));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

bool Exists(const std::string& path) { return fs::exists(path); }

std::string BinaryPath() { return Binary(); }

Process::Process(const Strings& arguments, const Options& options) {
  if (!options.output_directory.empty()) {
    static int count = 0;
    const std::string stem = options.output_directory + "/." + std::to_string(count++);
    out_path_ = stem + ".out";
    err_path_ = stem + ".err";
  }
  Strings argv = {options.program.empty() ? "fsdp-train" : options.program};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  Strings environment = EnvironmentWith(options.environment);
  const std::vector<char*> argv_pointers = Pointers(argv), env_pointers = Pointers(environment);
  const auto open_for = [](const std::string& path) {
    return open(path.empty() ? "/dev/null" : path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  };
  const int out = open_for(out_path_), err = open_for(err_path_);
  const int in = open("/dev/null", O_RDONLY);
  const std::string& binary = Binary();
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // And launch's ranks die with launch.
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) _exit(126);
    if (options.program.empty()) execve(binary.c_str(), argv_pointers.data(), env_pointers.data());
    execvpe(options.program.c_str(), argv_pointers.data(), env_pointers.data());
    _exit(127);
  }
  for (const int fd : {in, out, err}) close(fd);
  if (pid_ < 0) throw std::runtime_error("fork");
}

Process::~Process() {
  if (outcome_) return;
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  Finish(0, true);
}

void Process::Signal(int number) const { kill(pid_, number); }

bool Process::Running() {
  if (outcome_) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  Finish(status, false);
  return false;
}

Outcome Process::Wait(std::chrono::seconds patience) {
  if (!Eventually([this] { return !Running(); }, patience)) {
    kill(-pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    Finish(status, true);
  }
  return *outcome_;
}

std::string Process::Out() const { return ReadFile(out_path_); }

Outcome Process::Finish(int status, bool timed_out) {
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.timed_out = timed_out;
  if (!out_path_.empty()) {
    outcome.out = ReadFile(out_path_);
    outcome.err = ReadFile(err_path_);
  }
  outcome_ = outcome;
  return outcome;
}

std::map<int, pid_t> RanksOf(pid_t launcher) {
  std::map<int, pid_t> ranks;
  for (const pid_t child : ChildrenOf(launcher)) {
    std::istringstream environment(ReadFile("/proc/" + std::to_string(child) + "/environ"));
    for (std::string entry; std::getline(environment, entry, '\0');) {
      if (entry.starts_with("RANK=")) ranks[std::stoi(entry.substr(5))] = child;
    }
  }
  return ranks;
}

Variables Torchrun(int rank, int world, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

int FreePort() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const bool bound = bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  close(fd);
  if (!bound) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

bool Eventually(const std::function<bool()>& condition, std::chrono::seconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::vector<Json> ReadMetrics(const std::string& run_directory) {
  std::vector<Json> records;
  std::istringstream lines(ReadFile(run_directory + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    records.push_back(Json::parse(line));
  }
  return records;
}

std::vector<Json> OfKind(const std::vector<Json>& records, const std::string& kind) {
  std::vector<Json> chosen;
  for (const Json& record : records) {
    if (record.at("kind") == kind) chosen.push_back(record);
  }
  return chosen;
}

int64_t LastStep(const std::string& run_directory) {
  int64_t last = 0;
  for (const Json& record : OfKind(ReadMetrics(run_directory), "step")) {
    last = record.at("step").get<int64_t>();
  }
  return last;
}

Job::Job()
    : Job("run: {threads: 1}\n"
          "model: {family: gpt2, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2,\n"
          "        vocab_size: 64, max_position_embeddings: 16}\n"
          "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"
          "train: {steps: 10, micro_batch_size: 2, global_batch_size: 4}\n"
          "optimizer: {lr: 1.0e-2}\n"
          "schedule: {name: constant}\n") {}

Job::Job(const std::string& recipe) : recipe_(dir_.Write("recipe.yaml", recipe)) {}

Strings Job::Flags(const Strings& settings) const {
  Strings flags = {"--config", recipe_, "--set", "run.dir=" + run_dir()};
  for (const std::string& setting : settings) {
    flags.push_back("--set");
    flags.push_back(setting);
  }
  return flags;
}

Strings Job::LaunchArguments(int ranks, const Strings& settings,
                             const Strings& launch_flags) const {
  Strings arguments = {"launch", "--nproc-per-node", std::to_string(ranks)};
  arguments.insert(arguments.end(), launch_flags.begin(), launch_flags.end());
  arguments.push_back("--");
  for (const std::string& flag : Flags(settings)) arguments.push_back(flag);
  return arguments;
}

Process Job::Start(const Strings& arguments, const Variables& environment) const {
  return Process(arguments, {environment, "", dir_.path()});
}

Outcome Job::Train(const Strings& settings, const Variables& environment) const {
  return Start(Flags(settings), environment).Wait();
}

Outcome Job::Launch(int ranks, const Strings& settings, const Strings& launch_flags) const {
  return Start(LaunchArguments(ranks, settings, launch_flags)).Wait();
}

Outcome Call(const Strings& arguments, const Variables& environment, const std::string& directory) {
  const TempDir output;
  return Process(arguments, {environment, directory, output.path()}).Wait();
}

}  // namespace fsdp::e2e
