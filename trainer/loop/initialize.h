// The weights that a run begins with.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_
#define FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/checkpoint/manifest.h"
#include "trainer/engine/session.h"
#include "trainer/loop/job.h"
#include "trainer/loop/recorder.h"

namespace fsdp {

struct Recipe;
struct WeightSource;

// Draws the weights from `seed`, or reads those of model.init_from and draws adapters beside them.
// Averaged weights are the same. All ranks call it; blocks until each has its weights. Says which
// keys of init_from's config.json have gone into the run unasked, and which are ignored. Returns
// the base of a run with model.lora.base: all its frozen weights, coded or not. Throws
// CheckpointError; for mistakes of init_from on all ranks.
std::optional<CheckpointMeta::Base> InitializeWeights(const Recipe& recipe, const ModelShape& shape,
                                                      const Job& job, uint64_t seed,
                                                      Session& session, Recorder& recorder);

// Makes the base again, which the checkpoint of this meta does not have. Returns nothing where the
// run has none. All ranks call it; blocks. Throws CheckpointError on all ranks, also where the
// checkpoint's base was another.
std::optional<CheckpointMeta::Base> ResumeBase(const Recipe& recipe, const Job& job,
                                               const CheckpointMeta& meta,
                                               const std::string& checkpoint, Executor& executor,
                                               Recorder& recorder);

// Fills the base of an executor, if it has one. All ranks call it; blocks. Returns the hash.
uint64_t InitializeBase(const WeightSource& weights, const Job& job, Executor& executor);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_INITIALIZE_H_
