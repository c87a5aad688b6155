#include "trainer/loop/failure_protocol.h"

#include <chrono>
#include <ostream>
#include <stop_token>
#include <utility>

#include "trainer/comm/store/together.h"
#include "trainer/core/start_thread.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

std::string RankName(const Job& job) { return "rank " + std::to_string(job.rank); }

}  // namespace

FailureLink::FailureLink(Store& store, std::vector<Communicator*> communicators)
    : store_(store), communicators_(std::move(communicators)) {
  store_.OnFailure([this](const std::string& why) { Abort(why); });
}

void FailureLink::Abort(const std::string& why) {
  for (Communicator* c : communicators_) c->Abort(why);
}

EarlyStopWatch::EarlyStopWatch(const Job& job) {
  if (!job.stop_requested) return;
  thread_ = StartThread<std::jthread>(
      "the thread that hears a stop", [this, &job](const std::stop_token& end) {
        std::unique_lock lock(mutex_);
        while (!ended_.wait_for(lock, end, std::chrono::milliseconds(20), [] { return false; }) &&
               !end.stop_requested()) {
          if (!job.stop_requested()) continue;
          stopped_ = true;
          job.store->Fail(RankName(job) + ": " + EarlyStop::kReason);
          return;
        }
      });
}

void EarlyStopWatch::End() {
  thread_ = std::jthread();
  if (stopped_) throw EarlyStop();
}

bool IsEarlyStop(const Job& job, const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return (ours != nullptr && ours->code() == ExitCode::kStopped) ||
         EarlyStop::Is(job.store->FailureReason());
}

void EveryRank(const Job& job, const std::string& name, const std::function<void()>& work) {
  Together(*job.store, "train/" + name, job.rank, job.world, [&] {
    work();
    return "";
  });
}

void EndRun(const Job& job, const std::exception& error, const EndingHooks& hooks) {
  // Before the abort, which changes it.
  std::string reason = error.what();
  const bool comm = dynamic_cast<const CommError*>(&error) != nullptr;
  const bool device = dynamic_cast<const DeviceError*>(&error) != nullptr;
  if (comm || device) reason += "; " + RankName(job) + " stood at " + hooks.where();
  hooks.abort(error.what());
  if (IsEarlyStop(job, error)) {
    hooks.record_stop();
    throw;
  }
  const std::exception_ptr cause = hooks.give_up(error);
  if (cause) {
    try {
      std::rethrow_exception(cause);
    } catch (const std::exception& failed) {
      reason = failed.what();
    }
  }
  hooks.record_failure(reason);
  if (cause) std::rethrow_exception(cause);
  if (comm) throw CommError(reason);
  if (device) throw DeviceError(reason);
  throw;
}

ExitCode RunRank(const Job& job, const std::function<RankWork()>& begin) {
  const auto claims = [&](const char* what, const Error& error) {
    return ClaimReport(*job.store, what, job.rank, job.world, error);
  };
  try {
    RankWork work;
    try {
      work = begin();
    } catch (const Error& error) {
      if (IsEarlyStop(job, error) || claims("start", error)) throw;
      throw ReportedElsewhere(error);
    }
    try {
      return work();
    } catch (const Error& error) {  // All ranks see the same numbers.
      if (error.code() != ExitCode::kNotFinite || claims("not_finite", error)) throw;
      throw ReportedElsewhere(error);
    }
  } catch (const std::exception& error) {
    // The others hear the cause, not just that somebody is gone.
    if (job.store->FailureReason().empty()) {
      job.store->Fail(RankName(job) + ": " +
                      (IsEarlyStop(job, error) ? EarlyStop::kReason : error.what()));
    }
    if (!IsEarlyStop(job, error)) throw;
    const bool says_more = dynamic_cast<const CommError*>(&error) == nullptr &&
                           !EarlyStop::Is(error.what()) && job.console != nullptr;
    if (says_more) *job.console << Printable(error.what()) << std::endl;  // It says how to go on.
    throw EarlyStop();
  }
}

}  // namespace fsdp
