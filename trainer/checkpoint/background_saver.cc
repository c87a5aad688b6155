#include "trainer/checkpoint/background_saver.h"

#include <utility>

#include "trainer/core/check.h"
#include "trainer/core/start_thread.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

BackgroundSaver::BackgroundSaver(std::shared_ptr<StreamChecker> checker)
    : checker_(std::move(checker)),
      stream_(checker_ ? checker_->AddStream("saver") : 0),
      thread_(StartThread("the thread that saves checkpoints", [this] { Run(); })) {}

BackgroundSaver::~BackgroundSaver() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  Ended();
}

void BackgroundSaver::Ended() {
  if (checker_) checker_->OnHostWait(checker_->OnRecord(stream_));
}

void BackgroundSaver::Start(std::function<SavedCheckpoint()> save, const std::vector<Range>& reads,
                            EventPtr behind) {
  FSDP_CHECK(!in_flight_) << "a second save in the background";
  if (behind) behind->OrderBefore(stream_);
  if (checker_) checker_->OnOperation(stream_, "save", reads, {});
  in_flight_ = true;
  {
    const std::lock_guard lock(mutex_);
    save_ = [save = std::move(save), behind = std::move(behind)] {
      if (behind) behind->Block();
      return save();
    };
    error_ = nullptr;
  }
  changed_.notify_all();
}

bool BackgroundSaver::ended() const {
  const std::lock_guard lock(mutex_);
  return in_flight_ && !save_;
}

bool BackgroundSaver::failed() const {
  const std::lock_guard lock(mutex_);
  return in_flight_ && !save_ && error_;
}

SavedCheckpoint BackgroundSaver::Finish() {
  FSDP_CHECK(in_flight_) << "no save to finish";
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !save_; });
  in_flight_ = false;
  Ended();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::move(saved_);
}

void BackgroundSaver::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || save_; });
    if (!save_) return;
    lock.unlock();
    SavedCheckpoint saved;
    std::exception_ptr error;
    try {
      saved = save_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    saved_ = std::move(saved);
    error_ = error;
    save_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace fsdp
