// Data that fails while a run trains: a file that changes, an image that does not decode. The rank
// cannot leave, because the others wait for it in collectives. It goes on with batches whose
// weights are NaN, by which no rank changes a parameter, until all have heard of it. Then they save
// what they had before, and end alike.
// Tests: tests/trainer/loop/images_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_DATA_WATCH_H_
#define FSDP_TRAIN_TRAINER_LOOP_DATA_WATCH_H_

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "trainer/core/batch.h"
#include "trainer/loop/job.h"

namespace fsdp {

class DataWatch {
 public:
  // `inputs`: the model's, of all batches. The job is kept.
  DataWatch(const Job& job, BatchSpec inputs) : job_(job), inputs_(std::move(inputs)) {}

  // Fills `batch` by `load`. Where that throws DataError, and ever after, fills it with zeros and
  // weights of NaN. Any thread.
  void Load(const Batch& batch, const std::function<void()>& load);
  bool failed() const { return failed_; }  // Here. Any thread.

  // Whether the data of any rank has failed so far. All ranks call it together, where what they
  // have computed from their data is not finite, or some of them wanted to stop. `at`: a name of
  // its own each time.
  bool HasFailed(const std::string& at);
  bool known() const { return !what_.empty(); }  // HasFailed() has been true.

  // Ends all ranks together by what the first of those whose data failed was told. `save` saves
  // what may be saved, and returns the checkpoint to go on from, or "". Throws DataError,
  // ReportedElsewhere on the other ranks; CommError and DeviceError of `save`.
  [[noreturn]] void End(const std::function<std::string()>& save) const;

 private:
  const Job& job_;
  const BatchSpec inputs_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::string error_;  // Here; under mutex_.
  int who_ = 0;        // The rank that reports it, like the next.
  std::string what_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_DATA_WATCH_H_
