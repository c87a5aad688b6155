// A save that goes on while the run does: a thread of its own, one save at a time.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_BACKGROUND_SAVER_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_BACKGROUND_SAVER_H_

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "trainer/checkpoint/checkpoint.h"

namespace fsdp {

// Used by one thread, which must not have two saves in flight: a save is in flight from Start()
// until Finish(), whether or not it has ended.
class BackgroundSaver {
 public:
  BackgroundSaver();  // Starts the thread, which waits: none is started later.
  // Waits for a save that has not ended. Who gives up on it makes the store fail first.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // `save` runs on the saver's thread; what it refers to stays as it is until Finish(). Returns at
  // once. FSDP_CHECKs that none is in flight.
  void Start(std::function<SavedCheckpoint()> save);

  bool in_flight() const { return in_flight_; }
  bool ended() const;   // In flight, and Finish() will not block.
  bool failed() const;  // Ended by an exception.

  // Blocks until the save in flight has ended. Returns what it saved, throws what it threw.
  SavedCheckpoint Finish();

 private:
  void Run();

  mutable std::mutex mutex_;  // Guards all below but in_flight_.
  std::condition_variable changed_;
  std::function<SavedCheckpoint()> save_;  // Set: to be run, or running.
  SavedCheckpoint saved_;
  std::exception_ptr error_;
  bool stop_ = false;

  bool in_flight_ = false;  // The caller's thread's own.
  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_BACKGROUND_SAVER_H_
