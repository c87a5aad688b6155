#include "trainer/launch/stop_signal.h"

#include <errno.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

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
};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);
Notes notes;

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
      struct sigaction standard = {};
      standard.sa_handler = SIG_DFL;
      sigaction(number, &standard, nullptr);
      raise(number);  // Pending until this handler returns, then fatal.
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
  notes.installed = false;
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
