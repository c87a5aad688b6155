// The weights that a run begins with.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_
#define FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_

#include <cstdint>
#include <optional>

#include "trainer/checkpoint/manifest.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/loop/job.h"
#include "trainer/loop/recorder.h"

namespace fsdp {

struct Recipe;

// Draws the weights from `seed`, or reads those of model.init_from and draws adapters beside them.
// Averaged weights are the same. All ranks call it; blocks until each has its weights. Says which
// keys of init_from's config.json have gone into the run unasked, and which are ignored. Throws
// CheckpointError; for mistakes of init_from on all ranks.
void InitializeWeights(const Recipe& recipe, const ModelShape& shape, const Job& job, uint64_t seed,
                       Session& session, Recorder& recorder);

// The coded weights of model.lora.base, made of those of model.init_from: at the start, and again
// when a run goes on, since checkpoints do not have them. Nothing where the run has none. All ranks
// call it; blocks. Throws CheckpointError on all ranks.
std::optional<CheckpointMeta::Base> InitializeBase(const Recipe& recipe, const Job& job,
                                                   Executor& executor, Recorder& recorder);
// The same of a source that is open already.
uint64_t InitializeBase(const RecordSource& records, const Job& job, Executor& executor);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_
