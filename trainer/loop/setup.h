// From a recipe to the objects of a run. The only place where the rooms' own options are filled.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_SETUP_H_
#define FSDP_TRAIN_TRAINER_LOOP_SETUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/hosts/host_placement.h"
#include "trainer/data/loader.h"
#include "trainer/data/token_source.h"
#include "trainer/data/tokenizer.h"
#include "trainer/engine/session.h"
#include "trainer/loop/job.h"
#include "trainer/nn/model.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

// CPU compute threads of a rank: run.threads, or the cores this process may use, shared by the
// ranks of the host; at least 1.
int ThreadsFor(const Recipe& recipe, int local_world);

// Under model.init_from it reads the shape: of the run's checkpoint where it goes on from one, else
// of init_from's files. Throws ConfigError, CheckpointError.
ModelShape ShapeFor(const Recipe& recipe);

// The model, with what optimizer.groups says frozen. Throws ConfigError.
std::unique_ptr<Model> BuildModel(const Recipe& recipe, const ModelShape& shape);

// What else is wrong with a recipe, once there is a model to hold it against: model.init_from's
// shape, model.lora.targets, optimizer.groups. The recipe may have other mistakes. Reads init_from;
// what it cannot read there is left for ShapeFor() to throw.
std::vector<ShapeConflict> ModelMistakes(const Recipe& recipe);

// `hosts`: where the ranks of the job are, by which hybrid strategies shard unless the recipe says
// otherwise. `attention`: of attention_choice.h. Throws ConfigError where they have unequally many.
SessionOptions SessionOptionsFor(const Recipe& recipe, const HostPlacement& hosts, int threads,
                                 AttentionBackend attention = AttentionBackend::kOwn);

// Opens and checks everything that is read while training. Throws DataError, ConfigError.
struct RunData {
  struct Valid {
    std::string name;  // Empty: the only one.
    std::unique_ptr<EvalLoader> loader;
  };

  std::unique_ptr<TrainLoader> train;
  // Of samples: that of data.train. Null where nobody says, and then nothing is sampled.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<Valid> valid;  // Empty: no evaluation.
  DataFiles files;           // All that are opened.

  uint64_t Hash() const;  // Of the files, but not of their paths.
};
// `data_ranks`: the mesh's data_size(). `seed` orders the samples; `held_out` is the data.valid
// that says which tokens of data.train are never trained on: those of the recipe, or, in a resumed
// run, of the one that it began with. Text that is not tokenised yet is: `progress` hears of it,
// and ends it with Error(kStopped).
struct OpenProgress {
  std::function<void(const std::string&)> say;     // May be null.
  std::function<void(const std::string&)> remark;  // What all ranks see. May be null.
  std::function<bool()> stop;                      // May be null.
};
// Says it on the job's console, whichever rank of the host tokenises, remarks of rank 0 alone, and
// ends with the job.
OpenProgress ProgressFor(const Job& job);
RunData OpenData(const Recipe& recipe, const ModelShape& shape, int data_ranks, uint64_t seed,
                 const ValidRecipe& held_out, const OpenProgress& progress = {});
// Opens what OpenData() does, but tokenises nothing: of text that goes through a tokenizer the
// files' formats are looked at, and the tokenizer. Throws as OpenData() does.
void CheckData(const Recipe& recipe, const ModelShape& shape);

// The recipe, whose train.epochs has become a number of train.steps: of `data`, which is that of
// the recipe. Unchanged without train.epochs. Throws ConfigError where that is no number of steps.
Recipe WithSteps(const Recipe& recipe, const RunData& data);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_SETUP_H_
