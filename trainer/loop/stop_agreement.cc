#include "trainer/loop/stop_agreement.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <stop_token>
#include <utility>
#include <vector>

#include "trainer/comm/patience.h"
#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"

namespace fsdp {
namespace {

constexpr std::chrono::milliseconds kTick{20};  // A signal's way to the thread.
constexpr double kSlice_s = 0.1;                // The destructor waits for one at most.
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();  // A pass behind all others.

}  // namespace

void TimeLimit::StepEnded(Clock::time_point issued, std::optional<double> save_s) {
  const Clock::time_point begin = std::max(issued, std::exchange(last_end_, Clock::now()));
  const double step_s = std::chrono::duration<double>(last_end_ - begin).count();
  need_s_ = 2 * step_s + save_s.value_or(kFirstSave_s);
}

bool TimeLimit::IsNear() const {
  const double need_s = need_s_;
  return end_ && need_s >= 0 &&
         std::chrono::duration<double>(*end_ - Clock::now()).count() < need_s;
}

StopAgreement::StopAgreement(const Job& job, int64_t step, const TimeLimit& time,
                             std::function<void(const AgreedStop&)> say)
    : job_(job), store_(*job.store), time_(time), say_(std::move(say)) {
  begun_.step = step;
  store_.OnAnnouncement([this](const std::string& cause) {
    {
      const std::lock_guard lock(mutex_);
      heard_ = static_cast<StopCause>(std::stoi(cause));
    }
    changed_.notify_all();
  });
  thread_ = StartThread<std::jthread>("the thread that hears a stop",
                                      [this](const std::stop_token& end) { Heed(end); });
}

StopAgreement::~StopAgreement() { store_.OnAnnouncement(nullptr); }

void StopAgreement::Ask(StopCause cause) {
  {
    const std::lock_guard lock(mutex_);
    if (!asked_) asked_ = cause;
  }
  changed_.notify_all();
}

bool StopAgreement::Begin(int64_t step) {
  std::unique_lock lock(mutex_);
  if (!asked_) asked_ = Wish();
  if (asked_ || heard_) {
    changed_.notify_all();
    changed_.wait(lock, [this] { return decided(); });
    if (failed_) std::rethrow_exception(failed_);
    if (begun_.pass >= last_->pass) return false;
  }
  ++begun_.pass;
  begun_.step = step;
  return true;
}

std::optional<AgreedStop> StopAgreement::End() {
  std::unique_lock lock(mutex_);
  if (std::exchange(ended_, true)) return std::nullopt;
  if (!std::exchange(answered_, true)) {
    lock.unlock();
    store_.Set(Key(job_.rank), std::to_string(kNever) + " 0");
    return std::nullopt;
  }
  changed_.wait(lock, [this] { return decided(); });
  if (failed_) std::rethrow_exception(failed_);
  if (last_->pass == kNever) return std::nullopt;
  return last_;
}

void StopAgreement::Heed(const std::stop_token& end) {
  try {
    if (!WaitUntilAsked(end)) return;
    std::unique_lock lock(mutex_);
    if (!heard_) {
      const int cause = static_cast<int>(*asked_);
      lock.unlock();
      store_.Announce(std::to_string(cause));
      lock.lock();
      while (!changed_.wait_for(lock, end, kTick, [this] { return heard_.has_value(); })) {
        if (end.stop_requested()) return;
        if (const std::string why = store_.FailureReason(); !why.empty()) throw CommError(why);
      }
    }
    if (!std::exchange(answered_, true)) {
      const AgreedStop mine = begun_;
      lock.unlock();
      store_.Set(Key(job_.rank), std::to_string(mine.pass) + " " + std::to_string(mine.step));
      lock.lock();
    }
    const StopCause cause = *heard_;
    lock.unlock();
    const Values answers = ReadAnswers(end);
    if (end.stop_requested()) return;
    AgreedStop last = Latest(answers);
    last.cause = cause;
    // Before this rank can go on to its last words.
    const bool stops = last.pass > 0 && last.pass < kNever;
    if (job_.rank == 0 && stops && cause != StopCause::kOther) say_(last);
    lock.lock();
    last_ = last;
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    failed_ = std::current_exception();
  }
  changed_.notify_all();
}

std::optional<StopCause> StopAgreement::Wish() const {
  if (job_.stop_requested && job_.stop_requested()) return StopCause::kSignal;
  if (time_.IsNear()) return StopCause::kTime;
  return std::nullopt;
}

bool StopAgreement::WaitUntilAsked(const std::stop_token& end) {
  std::unique_lock lock(mutex_);
  const auto asked = [this] { return asked_ || heard_; };
  while (!changed_.wait_for(lock, end, kTick, asked)) {
    if (end.stop_requested()) return false;
    asked_ = Wish();
  }
  return true;
}

StopAgreement::Values StopAgreement::ReadAnswers(const std::stop_token& end) {
  std::vector<std::string> keys;
  for (int r = 0; r < job_.world; ++r) keys.push_back(Key(r));
  const std::chrono::duration<double> timeout(store_.timeout_s());
  for (Patience patience(std::chrono::duration_cast<Patience::Clock::duration>(timeout));;) {
    Values answers = store_.Fetch(keys, kSlice_s);
    int missing = 0;
    while (missing < job_.world && answers[missing]) ++missing;
    if (missing == job_.world || end.stop_requested()) return answers;
    if (patience.over()) {
      throw CommError("[stop] rank " + std::to_string(missing) +
                      " has not said within run.timeout_s which step it has begun");
    }
  }
}

AgreedStop StopAgreement::Latest(const Values& answers) const {
  AgreedStop latest{.pass = -1};
  for (const std::optional<std::string>& answer : answers) {
    AgreedStop its;
    std::istringstream(*answer) >> its.pass >> its.step;
    if (its.pass > latest.pass) latest = its;
  }
  return latest;
}

std::string StopAgreement::Key(int rank) const { return "stop/" + std::to_string(rank); }

}  // namespace fsdp
