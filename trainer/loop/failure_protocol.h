// How a rank ends where something fails: all ranks end, by the same cause, which one of them says;
// nobody waits for who has gone; and a stop before the first step is no failure.
#ifndef FSDP_TRAIN_TRAINER_LOOP_FAILURE_PROTOCOL_H_
#define FSDP_TRAIN_TRAINER_LOOP_FAILURE_PROTOCOL_H_

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/store.h"
#include "trainer/core/errors.h"
#include "trainer/loop/job.h"

namespace fsdp {

// Aborts the communicators when the job fails on another rank.
class FailureLink {
 public:
  FailureLink(Store& store, std::vector<Communicator*> communicators);
  ~FailureLink() { store_.OnFailure(nullptr); }
  FailureLink(const FailureLink&) = delete;
  FailureLink& operator=(const FailureLink&) = delete;

  void Abort(const std::string& why);

 private:
  Store& store_;
  std::vector<Communicator*> communicators_;
};

// Until the ranks train, a stop ends whatever they wait for: by way of the store, where the others
// hear of it as well.
class EarlyStopWatch {
 public:
  explicit EarlyStopWatch(const Job& job);  // Which outlives it.
  EarlyStopWatch(const EarlyStopWatch&) = delete;
  EarlyStopWatch& operator=(const EarlyStopWatch&) = delete;

  // From here on a stop is for the steps to see. Throws EarlyStop where one has come.
  void End();

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::atomic<bool> stopped_{false};
  std::jthread thread_;  // Last: it uses the above.
};

// Whether what a rank ends by is a stop that came before the first step: on this rank, in one of
// its waits, or on another one.
bool IsEarlyStop(const Job& job, const std::exception& error);

// `work` of every rank, or none goes on: all throw the first one's error. See Together().
void EveryRank(const Job& job, const std::string& name, const std::function<void()>& work);

// What of a run has a part in its end by an error. None is null.
struct RunParts {
  std::function<std::string()> where;                 // What this rank is in.
  std::function<void(const std::string& why)> abort;  // Or its own streams would wait for ever.
  // Gives up what goes on in the background. Returns why that failed, where it did before the run
  // and the error is only its echo; otherwise null.
  std::function<std::exception_ptr(const std::exception&)> give_up;
  std::function<void()> record_stop;
  std::function<void(const std::string& reason)> record_failure;
};
// Ends the parts of a run by `error`, which is being handled, and throws what the rank ends by: of
// a CommError it says where the rank stood.
[[noreturn]] void EndRun(const Job& job, const std::exception& error, const RunParts& parts);

// A rank's life. `begin` may find what every rank finds by itself, and returns what the rank then
// does, which is destroyed before anybody hears of its end. What all ranks would say alike one of
// them says (ToldByAnother); the store hears of whatever ends a rank, and a stop before the first
// step ends all of them by EarlyStop.
using Life = std::function<ExitCode()>;
ExitCode LiveAndTell(const Job& job, const std::function<Life()>& begin);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_FAILURE_PROTOCOL_H_
