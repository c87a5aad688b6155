#include "trainer/launch/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

#include "trainer/core/errors.h"
#include "trainer/core/line_buffer.h"
#include "trainer/core/process_limits.h"
#include "trainer/core/terminal.h"
#include "trainer/launch/exit_words.h"
#include "trainer/launch/job_secret.h"
#include "trainer/launch/launch_output.h"
#include "trainer/launch/rank_variables.h"
#include "trainer/launch/spawn.h"
#include "trainer/launch/stop_signal.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kCollective = static_cast<int>(ExitCode::kCollective);
constexpr int kStopped = static_cast<int>(ExitCode::kStopped);
constexpr size_t kMostQueued = 64 << 20;  // Bytes that ranks which are to end may leave unread.

std::string Seconds(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, const std::vector<std::string>& argv);
  ~Supervisor();
  int Run();

 private:
  struct Stream {
    UniqueFd pipe;  // Closed at its end.
    Sink* sink;
    LineBuffer lines;
  };
  struct Rank {
    int rank;            // The job's.
    int local;           // This host's.
    std::string prefix;  // Its lines'.
    pid_t pid;
    Clock::time_point start = Clock::now();
    bool running = true;
    bool spoke = false;  // On stderr.
    Stream streams[2];
  };
  struct Failure {
    int rank;
    pid_t pid;
    int code;
    std::string how;
    bool silent;  // It ended by itself, and left it to another rank to say why.
  };

  int RunOnce(int restart);
  void Start(int restart);
  void PollOnce();  // Blocks until something happens, and handles it.
  void ReadSignals();
  void OnStop(int number);
  void Reap();
  void OnExit(Rank& rank, int status);
  bool StoppedAtItsStart(const Rank& rank, int number) const;
  std::string WhoKilled() const;
  void OnDeadline();
  void Announce();
  void Read(Rank& rank, Stream& stream);
  void Emit(const Rank& rank, Stream& stream, std::string_view text, bool ended);
  void SignalRanks(int number);
  bool MayRead(const Stream& stream) const;
  void EndOutput();
  bool AnyRunning() const;
  bool AnyPipe() const;
  std::string RunningRanks() const;
  void Say(const std::string& text) { output_.Say(text); }

  const LaunchOptions& options_;
  const std::vector<std::string>& argv_;
  ProcessScope scope_;
  LaunchOutput output_;
  std::vector<UniqueFd> logs_;
  std::string program_name_;
  std::string run_id_;
  std::string secret_;  // Empty: what the ranks have is no business of this launcher.
  std::unique_ptr<FreePort> free_port_;

  // State of this start of the ranks.
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::optional<MemoryLimits::OomKills> oom_kills_;  // Before it.
  std::optional<Failure> failure_;
  bool announced_ = false;
  bool stopped_early_ = false;  // A rank returned 75.
  bool ending_ = false;         // We have sent SIGTERM or SIGKILL because of the failure.
  std::optional<Clock::time_point> deadline_;  // For the ranks that still run, or for the reader.

  // State of the whole launch.
  int stops_ = 0;  // SIGINT, SIGTERM and SIGHUP, repeats not counted.
  Clock::time_point last_stop_;
  std::optional<Clock::time_point> last_user_[2];  // SIGUSR1, SIGUSR2.
  bool abandon_output_ = false;
};

Supervisor::Supervisor(const LaunchOptions& options, const std::vector<std::string>& argv)
    : options_(options),
      argv_(argv),
      scope_(3 * static_cast<rlim_t>(options.nproc_per_node) + 64),
      run_id_(options.rdzv_id) {
  if (run_id_.empty() && options.nnodes > 1) run_id_ = "launch-" + options.rdzv_endpoint;
  if (run_id_.empty()) {
    run_id_ = "launch-" + std::to_string(getpid()) + "-" +
              std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
  }
  if (!options.secret_file.empty()) {
    secret_ = ReadSecretFile(options.secret_file);
  } else if (std::getenv(kSecretVariable) != nullptr) {
    ReadJobSecret(RankEnvironment());  // Told once, and not by each rank. They inherit it.
  } else if (options.nnodes == 1) {
    secret_ = RandomSecret();
  }
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  program_name_ = length > 0 ? std::string(path, static_cast<size_t>(length)) : "fsdp-train";
  if (options.log_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.log_dir, error);
  if (error) {
    throw ConfigError("--log-dir " + options.log_dir + ": cannot be made: " + error.message());
  }
  for (int local = 0; local < options.nproc_per_node; ++local) {
    const std::string file =
        options.log_dir + "/rank_" + std::to_string(options.FirstRank() + local) + ".log";
    logs_.emplace_back(open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!logs_.back().open()) {
      throw ConfigError("--log-dir: cannot write " + file + ": " + strerror(errno));
    }
  }
}

Supervisor::~Supervisor() {
  SignalRanks(SIGKILL);
  EndChildren();
}

int Supervisor::Run() {
  int code = 0;
  for (int restart = 0;; ++restart) {
    code = RunOnce(restart);
    if (code == 0 || stops_ > 0 || restart == options_.max_restarts) break;
    if (code == kStopped && options_.has_time_limit) break;
    if (!Restartable(code)) {
      Say("no restart: exit code " + std::to_string(code) + " would come again");
      break;
    }
    Say("restart " + std::to_string(restart + 1) + " of " + std::to_string(options_.max_restarts) +
        " after exit code " + std::to_string(code));
  }
  if (failure_ && Restartable(code) && options_.how_to_go_on) {
    if (const std::string how = options_.how_to_go_on(); !how.empty()) Say(how);
  }
  EndOutput();
  return code;
}

// The reader has had the ranks' time, and now the grace: a pipe whose other end nobody reads is no
// reason to stay.
void Supervisor::EndOutput() {
  deadline_ = Clock::now() + options_.grace;
  do {
    if (abandon_output_ || output_.bytes() == 0) return;
    PollOnce();
  } while (Clock::now() < *deadline_);
  if (output_.bytes() == 0) return;
  Say("nobody has read the ranks' output for " + Seconds(options_.grace) +
      " after their end: " + std::to_string(output_.bytes()) + " bytes of it are dropped");
  output_.errors().Drain();  // Where stderr has a reader.
}

int Supervisor::RunOnce(int restart) {
  failure_.reset();
  deadline_.reset();
  announced_ = stopped_early_ = ending_ = false;
  Start(restart);
  while (AnyRunning()) PollOnce();
  deadline_.reset();
  Announce();
  EndChildren();  // From here on nobody holds the other end of a pipe: each comes to its end.
  while (!abandon_output_ && AnyPipe()) PollOnce();
  ranks_.clear();
  if (failure_) return failure_->code;
  return stopped_early_ ? kStopped : 0;
}

void Supervisor::Start(int restart) {
  oom_kills_ = MemoryLimits(options_.memory_root).OutOfMemoryKills();
  RankVariables variables = {{}, restart, run_id_, secret_, output_.terminal()};
  if (options_.rdzv_endpoint.empty()) {
    auto port = std::make_unique<FreePort>();  // While the last one is held: never the same.
    free_port_ = std::move(port);
    variables.endpoint = {"127.0.0.1", free_port_->port()};
  } else {
    variables.endpoint = *ParseEndpoint(options_.rdzv_endpoint);
  }
  for (int local = 0; local < options_.nproc_per_node; ++local) {
    std::vector<std::string> argv = {program_name_};
    argv.insert(argv.end(), argv_.begin(), argv_.end());

    SpawnedProcess process =
        Spawn(options_.program, argv, EnvironmentOf(local, options_, variables),
              [this] { scope_.RestoreInChild(); });
    ranks_.push_back(std::make_unique<Rank>());
    Rank& it = *ranks_.back();
    it.rank = options_.FirstRank() + local;
    it.local = local;
    it.prefix.append("[").append(std::to_string(it.rank)).append("] ");
    it.pid = process.pid;
    it.streams[0].pipe = std::move(process.output);
    it.streams[0].sink = &output_.output();
    it.streams[1].pipe = std::move(process.errors);
    it.streams[1].sink = &output_.errors();
  }
}

void Supervisor::PollOnce() {
  output_.ShowBar();
  std::vector<pollfd> polled = {{scope_.signals(), POLLIN, 0}};
  std::vector<Sink*> sinks;
  for (Sink* sink : {&output_.output(), &output_.errors()}) {
    if (sink->empty() || (!sinks.empty() && sinks[0] == sink)) continue;
    polled.push_back({sink->fd(), POLLOUT, 0});
    sinks.push_back(sink);
  }
  std::vector<std::pair<Rank*, Stream*>> streams;
  for (const auto& rank : ranks_) {
    for (Stream& stream : rank->streams) {
      if (!stream.pipe.open() || !MayRead(stream)) continue;
      polled.push_back({stream.pipe.get(), POLLIN, 0});
      streams.emplace_back(rank.get(), &stream);
    }
  }
  // A thread that a driver has made may take SIGCHLD: the ranks are looked at all the same.
  int timeout_ms = 1000;
  if (deadline_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, timeout_ms));
  }
  if (poll(polled.data(), polled.size(), timeout_ms) < 0) return;  // EINTR, after a SIGCONT.

  for (size_t i = 0; i < sinks.size(); ++i) {
    if (polled[1 + i].revents != 0) sinks[i]->Drain();
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    if (polled[1 + sinks.size() + i].revents != 0) Read(*streams[i].first, *streams[i].second);
  }
  if (polled[0].revents != 0) ReadSignals();
  Reap();
  if (deadline_ && AnyRunning() && Clock::now() >= *deadline_) OnDeadline();
}

void Supervisor::ReadSignals() {
  signalfd_siginfo info;
  while (read(scope_.signals(), &info, sizeof(info)) == sizeof(info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;  // Reap() follows.
    if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
      OnStop(number);
    } else {
      std::optional<Clock::time_point>& last = last_user_[number == SIGUSR1 ? 0 : 1];
      const Clock::time_point now = Clock::now();
      if (last && now - *last <= options_.repeat) continue;
      last = now;
      SignalRanks(number);
    }
  }
}

void Supervisor::OnStop(int number) {
  const Clock::time_point now = Clock::now();
  if (stops_ > 0 && now - last_stop_ <= options_.repeat) return;
  ++stops_;
  last_stop_ = now;
  if (!AnyRunning()) {
    abandon_output_ = true;  // All that is left to wait for is a reader.
  } else if (stops_ == 1) {
    SignalRanks(number);
  } else if (stops_ == 2) {
    Say(SignalName(number) + ", the second: the ranks end now; a third kills them");
    SignalRanks(number);
  } else {
    Say(SignalName(number) + ", the third: SIGKILL");
    ending_ = true;
    SignalRanks(SIGKILL);
  }
}

void Supervisor::Reap() {
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const auto found = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
      return rank->running && rank->pid == info.si_pid;
    });
    // Processes that a rank leaves in its group end with it, before the kernel may use the number
    // again.
    if (found != ranks_.end()) kill(-info.si_pid, SIGKILL);
    int status = 0;
    waitpid(info.si_pid, &status, 0);
    if (found != ranks_.end()) OnExit(**found, status);
  }
}

void Supervisor::OnExit(Rank& rank, int status) {
  rank.running = false;
  // Its last words come before ours.
  for (Stream& stream : rank.streams) {
    while (stream.pipe.open() && MayRead(stream)) {
      pollfd ready = {stream.pipe.get(), POLLIN, 0};
      if (poll(&ready, 1, 0) != 1) break;
      Read(rank, stream);
    }
  }
  int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (code == 0) return;
  if (WIFSIGNALED(status) && StoppedAtItsStart(rank, WTERMSIG(status))) {
    Say("rank " + std::to_string(rank.rank) + " (pid " + std::to_string(rank.pid) +
        ") had yet to begin when " + SignalName(WTERMSIG(status)) + " came: it has stopped early");
    code = kStopped;
  }
  for (const auto& other : ranks_) {
    if (other->running) TellRankLeft(other->pid, {rank.rank, code});
  }
  if (code == kStopped) {
    stopped_early_ = true;
    return;
  }
  if (!failure_) deadline_ = Clock::now() + options_.grace;
  const bool silent = WIFEXITED(status) && !rank.spoke;
  const bool explains = failure_ && failure_->silent && code == failure_->code && !silent;
  const bool echo = failure_ && failure_->code == kCollective && code != kCollective && !ending_;
  if (failure_ && !echo && !explains) return;
  std::string how;
  if (WIFEXITED(status)) {
    how = "exit code " + std::to_string(code) + Meaning(code);
  } else {
    how = WTERMSIG(status) == SIGKILL && !ending_ ? WhoKilled()
                                                  : "killed by " + SignalName(WTERMSIG(status));
    how += ", exit code " + std::to_string(code);
  }
  failure_ = Failure{rank.rank, rank.pid, code, how, silent};
  if (code != kCollective && !silent) Announce();
}

// A rank that takes signals ends by the second one alone, `repeat` after the first.
bool Supervisor::StoppedAtItsStart(const Rank& rank, int number) const {
  const bool stop = number == SIGINT || number == SIGTERM || number == SIGHUP;
  return stop && !ending_ && Clock::now() - rank.start < options_.repeat;
}

// The ranks are in this process's control group: it starts them.
std::string Supervisor::WhoKilled() const {
  const auto now = MemoryLimits(options_.memory_root).OutOfMemoryKills();
  if (!now || !oom_kills_ || now->file != oom_kills_->file || now->count <= oom_kills_->count) {
    return "killed by SIGKILL (by hand, or out of memory: see dmesg)";
  }
  return "killed by the kernel: out of memory (oom_kill of " + now->file + ": " +
         std::to_string(oom_kills_->count) + ", now " + std::to_string(now->count) + ")";
}

void Supervisor::Announce() {
  if (!failure_ || announced_) return;
  announced_ = true;
  Say("rank " + std::to_string(failure_->rank) + " (pid " + std::to_string(failure_->pid) +
      ") failed first: " + failure_->how);
}

void Supervisor::OnDeadline() {
  Announce();
  if (!ending_) {
    ending_ = true;
    Say(RunningRanks() + " still there " + Seconds(options_.grace) + " later: SIGTERM");
    SignalRanks(SIGTERM);
    deadline_ = Clock::now() + options_.grace_after_sigterm;
  } else {
    Say(RunningRanks() + " still there " + Seconds(options_.grace_after_sigterm) +
        " after SIGTERM: SIGKILL");
    SignalRanks(SIGKILL);
    deadline_.reset();
  }
}

void Supervisor::Read(Rank& rank, Stream& stream) {
  char bytes[1 << 16];
  const ssize_t length = read(stream.pipe.get(), bytes, sizeof(bytes));
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (length > 0) {
    rank.spoke = rank.spoke || &stream == &rank.streams[1];
    stream.lines.Append(
        {bytes, static_cast<size_t>(length)},
        [&](std::string_view text, bool ended) { Emit(rank, stream, text, ended); });
    return;
  }
  stream.pipe.Close();
  stream.lines.Flush([&](std::string_view text, bool) { Emit(rank, stream, text, true); });
  if (rank.rank == 0 && &stream == &rank.streams[0]) output_.SetBar("");
}

void Supervisor::Emit(const Rank& rank, Stream& stream, std::string_view text, bool ended) {
  const bool of_the_bar = rank.rank == 0 && &stream == &rank.streams[0];
  if (of_the_bar && !output_.terminal().empty() && text.starts_with(kBarMark)) {
    return output_.SetBar(text.substr(1));
  }
  output_.Line(*stream.sink, {rank.prefix, text});
  if (logs_.empty()) return;
  UniqueFd& log = logs_[static_cast<size_t>(rank.local)];
  if (!log.open()) return;
  std::string line(text);
  if (ended) line += '\n';
  if (WriteAll(log.get(), line)) return;
  Say("rank_" + std::to_string(rank.rank) + ".log ends here: " + strerror(errno));
  log.Close();
}

void Supervisor::SignalRanks(int number) {
  for (const auto& rank : ranks_) {
    if (rank->running) kill(-rank->pid, number);
  }
}

// A full queue holds ranks up, but not from ending. All output of ranks that have ended is read.
bool Supervisor::MayRead(const Stream& stream) const {
  if (!stream.sink->full() || !AnyRunning()) return true;
  return (stops_ > 0 || stopped_early_ || failure_) && stream.sink->bytes() < kMostQueued;
}

bool Supervisor::AnyRunning() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->running; });
}

bool Supervisor::AnyPipe() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank->streams[0].pipe.open() || rank->streams[1].pipe.open();
  });
}

std::string Supervisor::RunningRanks() const {
  constexpr int kNamed = 8;
  std::string text;
  int running = 0;
  for (const auto& rank : ranks_) {
    if (!rank->running) continue;
    if (++running <= kNamed) text += (text.empty() ? "" : ", ") + std::to_string(rank->rank);
  }
  if (running > kNamed) text += ", ...";
  return (running == 1 ? "rank " : "ranks ") + text;
}

}  // namespace

int Launch(const LaunchOptions& options, const std::vector<std::string>& argv) {
  CheckLaunchOptions(options);
  return Supervisor(options, argv).Run();
}

}  // namespace fsdp
