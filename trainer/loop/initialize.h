// The weights that a run begins with.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_
#define FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/checkpoint/manifest.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/loop/job.h"
#include "trainer/loop/recorder.h"

namespace fsdp {

struct Recipe;

// Draws the weights from `seed`, or reads those of model.init_from and draws adapters beside them.
// Averaged weights are the same. All ranks call it; blocks until each has its weights. Says which
// keys of init_from's config.json have gone into the run unasked, and which are ignored. Returns as
// InitializeBase(). Throws CheckpointError; for mistakes of init_from on all ranks.
std::optional<CheckpointMeta::Base> InitializeWeights(const Recipe& recipe, const ModelShape& shape,
                                                      const Job& job, uint64_t seed,
                                                      Session& session, Recorder& recorder);

// The coded weights of model.lora.base, made of those of model.init_from: by InitializeWeights(),
// and again when a run goes on from a checkpoint, which does not have them. Returns what they are
// made of; nothing where the run has none. All ranks call it; blocks. Throws CheckpointError on all
// ranks, also where the checkpoint's were made of other weights.
struct ResumedBase {
  const CheckpointMeta& meta;
  const std::string& checkpoint;
};
std::optional<CheckpointMeta::Base> InitializeBase(const Recipe& recipe, const Job& job,
                                                   Executor& executor, Recorder& recorder,
                                                   std::optional<ResumedBase> resumed = {});
// From a source that is open already. Returns the hash.
uint64_t InitializeBase(const RecordSource& records, const Job& job, Executor& executor);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_
