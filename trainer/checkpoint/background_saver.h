// A save that goes on while the run does: a thread of its own, one save at a time.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_BACKGROUND_SAVER_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_BACKGROUND_SAVER_H_

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/runtime/range.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class StreamChecker;

// Used by one thread, which must not have two saves in flight: a save is in flight from Start()
// until Finish(), whether or not it has ended.
class BackgroundSaver {
 public:
  // Starts the thread, which waits: none is started later. `checker`, if not null, sees the thread
  // as a stream whose only operations are the saves.
  explicit BackgroundSaver(std::shared_ptr<StreamChecker> checker = nullptr);
  // Waits for a save that has not ended. To give up on the save, make the store fail first.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Runs `save` on the saver's thread, once `behind` has passed; if that has failed, Finish()
  // throws its error. The data that `save` reads must not change from then on until Finish().
  // `reads`: all bytes of the data that streams write, too. `behind` must come behind their
  // writers; null: the host has waited. Returns at once. FSDP_CHECKs that no save is in flight.
  void Start(std::function<SavedCheckpoint()> save, const std::vector<Range>& reads = {},
             EventPtr behind = nullptr);

  bool in_flight() const { return in_flight_; }
  bool ended() const;   // In flight, and Finish() will not block.
  bool failed() const;  // Ended by an exception.

  // Blocks until the save in flight has ended. Returns its result or throws its error.
  SavedCheckpoint Finish();

 private:
  void Run();
  void Ended();  // Tells the checker that the caller has waited for the save, and so for all that
                 // it read.

  const std::shared_ptr<StreamChecker> checker_;
  const int stream_;          // The checker's.
  mutable std::mutex mutex_;  // Guards all below but in_flight_.
  std::condition_variable changed_;
  std::function<SavedCheckpoint()> save_;  // Set: waiting or running.
  SavedCheckpoint saved_;
  std::exception_ptr error_;
  bool stop_ = false;

  bool in_flight_ = false;  // For the caller's thread alone.
  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_BACKGROUND_SAVER_H_
