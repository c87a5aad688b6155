// The last step of a run that is told to stop: how all ranks find the same one, at once, while none
// of them asks or waits as long as nobody wants to stop.
//
//   Passes    A run is a sequence of passes that all ranks begin in the same order: training steps,
//             micro-batches of evaluations, tokens of samples. A rank has begun a pass when Begin()
//             has allowed its host to enqueue it; the device may be two passes behind.
//   Rule      A rank that wants to stop announces it through the Store. Every rank that hears of it
//             begins no further pass, sets the last one that it has begun in the Store, and reads
//             what the others have set. The latest is the last pass of the run. Ranks that are
//             behind begin all up to it, and no rank has begun a later one.
//   Threads   Each agreement has a thread that hears, answers and reads, so a rank answers while
//             its training thread waits for a step, an evaluation or a save. The training thread
//             blocks in Begin(), and End(), between its rank's answer and the last other one.
//             Nobody who has to answer waits for a step, so this ends.
//   The end   A rank whose run has come to its end answers so in End(), stop or not. Then all go on
//             to the end, and there is no stop.
//   Failures  Where a rank dies or fails meanwhile, the Store has failed, and Begin() and End()
//             throw its CommError. A rank that does not answer within the store's timeout_s:
//             CommError naming it.
// Tests: tests/trainer/loop/stop_agreement_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_STOP_AGREEMENT_H_
#define FSDP_TRAIN_TRAINER_LOOP_STOP_AGREEMENT_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/store/store.h"
#include "trainer/loop/job.h"

namespace fsdp {

// kOther: a rank cannot go on or has nobody to talk to. It is no request, and nobody is told.
enum class StopCause { kSignal, kTime, kOther };

struct AgreedStop {
  StopCause cause = StopCause::kOther;  // The first one's that wanted it.
  int64_t pass = 0;                     // The last one, counted from 1 in this start; 0: none.
  int64_t step = 0;                     // The last training step.
};

// The time that a run may take. The training thread tells, any thread asks.
class TimeLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr double kFirstSave_s = 60;  // Kept for a save while none has been timed.

  explicit TimeLimit(std::optional<Clock::time_point> end) : end_(end) {}  // Empty: no limit.

  // A step has ended that was issued then. `save_s`: seconds of the last save; empty: none yet.
  void StepEnded(Clock::time_point issued, std::optional<double> save_s);
  // Whether to stop: the time left is less than a save takes and the two steps that may be under
  // way. A start makes a step, whatever the time.
  bool IsNear() const;

 private:
  const std::optional<Clock::time_point> end_;
  Clock::time_point last_end_;       // The last step's.
  std::atomic<double> need_s_ = -1;  // < 0: no step has ended.
};

class StopAgreement {
 public:
  // All ranks make one, with the same step: the last one before this start. Job and limit outlive
  // it; they are asked every 20 ms and before each pass whether this rank wants to stop. `say`, of
  // rank 0, hears once, from the agreement's thread, of a stop that somebody has asked for and that
  // has a pass; this rank's last pass may still be to come. Throws as StartThread() does.
  StopAgreement(const Job& job, int64_t step, const TimeLimit& time,
                std::function<void(const AgreedStop&)> say);
  ~StopAgreement();  // Waits 0.1 s at most, or for one answer of the store.
  StopAgreement(const StopAgreement&) = delete;
  StopAgreement& operator=(const StopAgreement&) = delete;

  // Asks for a stop. Does not block.
  void Ask(StopCause cause);

  // The training thread alone calls these three. All ranks make the same calls of the first two,
  // and get the same answers.
  // Begins the next pass, with or behind training step `step`; false: the last has been begun.
  bool Begin(int64_t step);
  // No pass follows. Returns the stop that ends this run, once; a later call returns empty.
  std::optional<AgreedStop> End();
  int64_t passes() const { return begun_.pass; }  // Begun.

 private:
  using Values = std::vector<std::optional<std::string>>;
  bool decided() const { return last_.has_value() || failed_ != nullptr; }
  void Heed(const std::stop_token& end);  // The thread.
  std::optional<StopCause> Wish() const;
  bool WaitUntilAsked(const std::stop_token& end);
  Values ReadAnswers(const std::stop_token& end);
  AgreedStop Latest(const Values& answers) const;
  std::string Key(int rank) const;

  const Job& job_;
  Store& store_;
  const TimeLimit& time_;
  const std::function<void(const AgreedStop&)> say_;
  std::mutex mutex_;  // Guards all but the thread.
  std::condition_variable_any changed_;
  AgreedStop begun_;  // By this rank; the training thread writes it.
  std::optional<StopCause> asked_, heard_;
  bool answered_ = false, ended_ = false;
  std::optional<AgreedStop> last_;
  std::exception_ptr failed_;
  std::jthread thread_;  // Last: it uses the above.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_STOP_AGREEMENT_H_
