#include "trainer/launch/stop_signal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/terminal.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

struct LastWords {
  std::string latest, go_on, otherwise;  // A path; the begin of a line; a whole one.
};

// All that the handler may touch: lock-free atomics are async-signal-safe, members of an object
// whose life ends are not reachable from it.
struct Notes {
  std::atomic<bool> installed;
  std::atomic<int64_t> repeat_ns;
  std::atomic<int64_t> first_stop_ns;  // CLOCK_MONOTONIC, 0 before.
  std::atomic<int> stop_signal;
  std::atomic<bool> checkpoint;
  std::atomic<bool> report;
  std::atomic<int> left;  // A rank and its code, as Packed(); 0: none.
  std::atomic<const LastWords*> last_words;
};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);
Notes notes;
constexpr size_t kName = 255;  // Bytes of a checkpoint's name.

constexpr int kCodes = 1 << 8;
int Packed(const RankLeft& left) { return left.rank * kCodes + left.code % kCodes; }

sigset_t StopSignalSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kStopSignals) sigaddset(&set, number);
  return set;
}

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);  // Async-signal-safe (POSIX 2008).
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// Says a line to a reader who reads. Async-signal-safe.
void WriteLine(std::string_view line) {
  constexpr int kPatience_ms = 200;
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  while (!line.empty() && poll(&out, 1, kPatience_ms) == 1) {
    const ssize_t written = write(STDOUT_FILENO, line.data(), line.size());
    if (written <= 0) return;
    line.remove_prefix(static_cast<size_t>(written));
  }
}

// Called by the handler: async-signal-safe.
[[noreturn]] void EndAtOnce() {
  const LastWords* const words = notes.last_words;
  if (words != nullptr) {
    char line[4096];
    const size_t begin = words->go_on.size();
    ssize_t name = -1;
    const int latest = open(words->latest.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (latest >= 0 && begin + kName < sizeof(line)) {
      memcpy(line, words->go_on.data(), begin);
      name = read(latest, line + begin, kName);
    }
    if (name > 0) {
      const size_t length = begin + static_cast<size_t>(name);
      line[length] = '\n';
      WriteLine({line, length + 1});
    } else {
      WriteLine(words->otherwise);
    }
  }
  _exit(static_cast<int>(ExitCode::kStopped));
}

void OnSignal(int number, siginfo_t* info, void* /*context*/) {
  const int saved_errno = errno;
  if (number == SIGURG) {
    int none = 0;
    const int left = info->si_code == SI_QUEUE ? info->si_value.sival_int : none;
    notes.left.compare_exchange_strong(none, left);
  } else if (number == SIGUSR1) {
    notes.checkpoint = true;
  } else if (number == SIGUSR2) {
    notes.report = true;
  } else {
    int64_t first = 0;
    const int64_t now = NowNs();
    if (notes.first_stop_ns.compare_exchange_strong(first, now)) {
      notes.stop_signal = number;
    } else if (now - first > notes.repeat_ns) {
      EndAtOnce();
    }
  }
  errno = saved_errno;
}

}  // namespace

void HoldStopSignals() {
  const sigset_t set = StopSignalSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void ReleaseStopSignals() {
  const sigset_t set = StopSignalSet();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void TellRankLeft(pid_t pid, const RankLeft& left) {
  sigval value = {};
  value.sival_int = Packed(left);
  sigqueue(pid, SIGURG, value);
}

StopSignal::StopSignal(std::chrono::milliseconds repeat) {
  if (notes.installed.exchange(true)) {
    throw std::logic_error("[StopSignal] one at a time, and another is installed");
  }
  notes.repeat_ns = std::chrono::nanoseconds(repeat).count();
  notes.first_stop_ns = 0;
  notes.stop_signal = 0;
  notes.checkpoint = false;
  notes.report = false;
  notes.left = 0;
  struct sigaction action = {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  action.sa_mask = StopSignalSet();
  for (size_t i = 0; i < std::size(kStopSignals); ++i) {
    FSDP_CHECK_EQ(sigaction(kStopSignals[i], &action, &previous_[i]), 0);
    const bool nohup = kStopSignals[i] == SIGHUP && previous_[i].sa_handler == SIG_IGN;
    if (nohup) sigaction(SIGHUP, &previous_[i], nullptr);
  }
  ReleaseStopSignals();
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < std::size(kStopSignals); ++i) {
    sigaction(kStopSignals[i], &previous_[i], nullptr);
  }
  const std::unique_ptr<const LastWords> said(notes.last_words.exchange(nullptr));
  notes.installed = false;
}

void StopSignal::SetLastWords(const std::string& directory, const std::string& otherwise) {
  // A bar may be where the line is to be.
  const std::string begin =
      (IsTerminal(STDOUT_FILENO) ? "\r\x1b[K" : "") + std::string("ended at once: ");
  const std::unique_ptr<const LastWords> before(notes.last_words.exchange(new LastWords{
      directory + "/latest", begin + Printable("the run can go on from " + directory + "/"),
      begin + Printable(otherwise) + "\n"}));
}

bool StopSignal::stop_requested() const { return notes.stop_signal != 0; }
int StopSignal::signal() const { return notes.stop_signal; }
std::optional<RankLeft> StopSignal::rank_left() const {
  const int left = notes.left;
  if (left <= 0) return std::nullopt;
  return RankLeft{left / kCodes, left % kCodes};
}
bool StopSignal::TakeCheckpointRequest() { return notes.checkpoint.exchange(false); }
bool StopSignal::TakeReportRequest() { return notes.report.exchange(false); }

}  // namespace fsdp
