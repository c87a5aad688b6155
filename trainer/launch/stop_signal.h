// A rank's answer to signals: it takes a note, and the training loop reads it once a step.
//
//   SIGINT, SIGTERM, SIGHUP  Stop: end after this step with a checkpoint, exit code 75. Another one
//                            within kRepeat of the first is the same request (a launcher, a
//                            scheduler and a terminal may all send one); a later one ends the
//                            process at once, with the last words and exit code 75. A SIGHUP
//                            that is ignored (nohup) stays so.
//   SIGUSR1                  Write a checkpoint now and go on.
//   SIGUSR2                  Say where this rank stands.
//   SIGURG                   From the launcher: another rank has left. Nobody else sends it, and a
//                            program that knows nothing of it ignores it.
// All ranks must act at the same step: they agree on it (loop/stop_agreement.h).
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_STOP_SIGNAL_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_STOP_SIGNAL_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace fsdp {

inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGURG};
// The same as a set of the kernel's.
constexpr uint64_t StopSignalBits() {
  uint64_t bits = 0;
  for (const int number : kStopSignals) bits |= uint64_t{1} << (number - 1);
  return bits;
}

// Blocks the signals above: one that comes before there is a StopSignal waits for it, instead of
// ending the process. Whoever starts ranks does so for them, since a new program begins without
// handlers.
void HoldStopSignals();
void ReleaseStopSignals();

// A rank that is gone, and how: its exit code, 128 + s where signal s killed it.
struct RankLeft {
  int rank;
  int code;  // Not 0.
};
void TellRankLeft(pid_t pid, const RankLeft& left);

// Installs the handlers, releases the signals, and puts back on destruction the handlers that were
// there before. At most one object at a time: std::logic_error. The functions may be called from
// any thread and never block. A blocking system call of the process may return EINTR only where it
// does so despite SA_RESTART (poll, nanosleep, ...).
class StopSignal {
 public:
  // A supervisor passes a second signal on after 5 s of its own clock. That one must not be taken
  // for a repeat because the first was delivered late.
  static constexpr std::chrono::milliseconds kRepeat{4500};

  explicit StopSignal(std::chrono::milliseconds repeat = kRepeat);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool stop_requested() const;   // Stays true.
  int signal() const;            // The first that asked for a stop, 0 before.
  bool TakeCheckpointRequest();  // True once per SIGUSR1; several before a call are one.
  bool TakeReportRequest();      // The same for SIGUSR2.
  std::optional<RankLeft> rank_left() const;  // The first that we were told of.

  // The line on stdout with which a second stop ends this process: "ended at once: the run can go
  // on from DIRECTORY/NAME", where the file `latest` in that directory, read at that moment, holds
  // the name; `otherwise` in place of all behind the colon where there is no such file. A reader
  // who does not read for 0.2 s misses it. Without this call there is no line. Called once.
  void SetLastWords(const std::string& directory, const std::string& otherwise);

 private:
  struct sigaction previous_[6];
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_STOP_SIGNAL_H_
