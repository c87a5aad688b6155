// How ranks end where something fails. All end by the same cause, and one of them says it. None
// waits for a rank that has gone. A stop before the first step is no failure.
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
#include "trainer/comm/store/store.h"
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

// Until the ranks train, a stop ends whatever they wait for. It goes by way of the store, so that
// the other ranks hear of it.
class EarlyStopWatch {
 public:
  explicit EarlyStopWatch(const Job& job);  // The job outlives it.
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

// Whether `error` is a stop that came before the first step, on this rank, in one of its waits, or
// on another rank.
bool IsEarlyStop(const Job& job, const std::exception& error);

// Every rank does `work`. Where it fails on any rank, all throw the first one's error. See
// Together().
void EveryRank(const Job& job, const std::string& name, const std::function<void()>& work);

// Calls by which the parts of a run end it by an error. None is null.
struct EndingHooks {
  std::function<std::string()> where;                 // Where this rank stands.
  std::function<void(const std::string& why)> abort;  // Else its own streams would wait for ever.
  // Gives up work in the background. Returns why that failed where it failed before the run did, so
  // that the error is only its echo; otherwise null.
  std::function<std::exception_ptr(const std::exception&)> give_up;
  std::function<void()> record_stop;
  std::function<void(const std::string& reason)> record_failure;
};
// Ends a run by `error`, which is being handled, and throws the error that the rank ends by. A
// CommError then says where the rank stood.
[[noreturn]] void EndRun(const Job& job, const std::exception& error, const EndingHooks& hooks);

// Runs a rank. `begin` may throw mistakes that every rank finds by itself. It returns the rank's
// further work, which is destroyed before anybody hears of the rank's end. One rank reports an
// error that all share; the others throw ReportedElsewhere. The store hears of every error that
// ends a rank. A stop before the first step ends all ranks by EarlyStop.
using RankWork = std::function<ExitCode()>;
ExitCode RunRank(const Job& job, const std::function<RankWork()>& begin);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_FAILURE_PROTOCOL_H_
