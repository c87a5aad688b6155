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
#include "trainer/recipe/recipe.h"

namespace fsdp {

// Of every rank; what is called of one is called of all, but for those that say otherwise. No
// device work may be under way while it reads or writes the session's state: it waits for it.
class Checkpointer {
 public:
  // References are kept. A background saver's thread starts here, and none later.
  Checkpointer(const Recipe& recipe, const Job& job, const RunDirectory& directory,
               Session& session, Recorder& recorder);

  // Fills the session's state from a checkpoint's directory. Called of a rank alone. Throws
  // CheckpointError that also says how else one can go on; so does a state that is not finite. A
  // disk that cannot take what is spilled is SpillError, and says no more. What it was in another
  // precision the console says in one line.
  CheckpointMeta Load(const std::string& from);

  // Whether checkpoint.every asks for one after this training step.
  bool IsDue(int64_t step) const;
  // Of a rank alone, whose clock says it: whether checkpoint.every_minutes asks for one. True once
  // for each.
  bool WantsByTime();
  // Saves what there is after step meta.step, which all streams have done and checked: nothing of a
  // step becomes durable before its events and the communicators have been. Waits for the save
  // before. `last`: no step follows, so that nothing is gained in the background; blocks until it
  // counts.
  void Save(const CheckpointMeta& meta, bool last);
  int64_t saved_step() const { return saved_step_; }  // Of the last Save(); -1: none.

  // These four of a rank alone. Records the save in the background if it has ended well.
  void Poll();
  bool failed() const { return saver_ && saver_->failed(); }
  // Waits for the save in the background, if there is one. Throws what it threw.
  void Finish();
  // The run ends by `error`. A save in the background waits for ranks that may be no more, unless
  // the store says so. Returns why it failed, where it did before the run and another rank has
  // ended that by now: then `error` is only the echo. Otherwise null.
  std::exception_ptr GiveUp(const std::exception& error);

  // The update of the last step may have overflowed, which no loss has shown. A checkpoint of it
  // would have. Throws Error(kNotFinite) on all ranks.
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
  std::chrono::steady_clock::time_point last_wish_ = std::chrono::steady_clock::now();
  std::optional<BackgroundSaver> saver_;  // Reads the session's snapshot.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_CHECKPOINTER_H_
