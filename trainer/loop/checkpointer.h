// The checkpoints of a run: the one that it goes on from, and those that it saves, in the
// background where checkpoint.async says so.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_CHECKPOINTER_H_
#define FSDP_TRAIN_TRAINER_LOOP_CHECKPOINTER_H_

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/background_saver.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/engine/session.h"
#include "trainer/loop/job.h"
#include "trainer/loop/recorder.h"
#include "trainer/loop/run_directory.h"

namespace fsdp {

struct Recipe;

// Every rank has one. All ranks make the same calls, but for functions that say otherwise. Reading
// or writing the session's state waits for all device work.
class Checkpointer {
 public:
  // References are kept. A background saver's thread starts here, and none later.
  Checkpointer(const Recipe& recipe, const Job& job, const RunDirectory& directory,
               Session& session, Recorder& recorder);

  // Fills the session's state from a checkpoint's directory. A rank calls it alone. Throws
  // CheckpointError, also for a state that is not finite; its message says how else one can go on.
  // Throws SpillError, without such words, where the disk cannot take what is spilled. The console
  // says in one line what was in another precision.
  CheckpointMeta Load(const std::string& from);

  // Whether checkpoint.every asks for a save after this training step.
  bool IsDue(int64_t step) const;
  // Whether checkpoint.every_minutes asks for a save by this rank's clock. A rank calls it alone.
  // True once for each save.
  bool WantsByTime();
  // Saves the state after step meta.step, which all streams have done: the step's events and the
  // communicators have been checked, so that nothing of a failed step becomes durable. Waits for
  // the save before. `last`: no step follows, so that it does not save in the background but blocks
  // until the checkpoint counts.
  void Save(const CheckpointMeta& meta, bool last);
  int64_t saved_step() const { return saved_step_; }  // The step of the last Save(); -1: none.
  // How long the last save took that is complete; empty: none is.
  std::optional<double> save_seconds() const { return save_seconds_; }

  // A rank calls these four alone. Poll() records the save in the background if it has ended well.
  void Poll();
  bool failed() const { return saver_ && saver_->failed(); }
  // Waits for the save in the background, if there is one. Throws what it threw.
  void Finish();
  // The run ends by `error`. Tells the store, or a save in the background would wait for ranks that
  // have gone. Returns why that save failed where `error` is only its echo: the save failed first,
  // and another rank has ended the run by now. Otherwise null.
  std::exception_ptr GiveUp(const std::exception& error);

  // Throws Error(kNotFinite) on all ranks where the update of the last step has overflowed: no loss
  // has shown that.
  void RequireFinite(int64_t step);

 private:
  std::string NotFinite();
  void FetchState(const char* name);
  void DeclareHostUse(const char* name, const std::vector<Range>& reads,
                      const std::vector<Range>& writes);
  void RecordSaved(const SavedCheckpoint& saved);
  Executor& executor() { return session_.executor(); }

  const Recipe& recipe_;
  const Job& job_;
  const RunDirectory& directory_;
  Session& session_;
  Recorder& recorder_;
  int64_t saves_ = 0, saved_step_ = -1;
  std::optional<double> save_seconds_;
  std::chrono::steady_clock::time_point last_wish_ = std::chrono::steady_clock::now();
  std::optional<BackgroundSaver> saver_;  // Reads the session's snapshot.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_CHECKPOINTER_H_
