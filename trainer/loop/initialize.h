// The weights that a run begins with.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_
#define FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_

#include <cstdint>

#include "trainer/engine/session.h"
#include "trainer/loop/job.h"
#include "trainer/loop/recorder.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

// Drawn from `seed`, or model.init_from's, and adapters drawn beside them; averaged weights are the
// same. Called of every rank: blocks until all have theirs. Says what of init_from's config.json
// has gone into the run unasked, and what has not at all. Throws CheckpointError, of init_from on
// all ranks.
void InitializeWeights(const Recipe& recipe, const ModelShape& shape, const Job& job, uint64_t seed,
                       Session& session, Recorder& recorder);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_
