// What a run reads: the sources of its recipe, opened, and in the loaders that fill its batches.
// Tests: tests/trainer/loop/packing_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_DATA_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_DATA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/shape.h"
#include "trainer/data/data_files.h"
#include "trainer/data/loader.h"
#include "trainer/data/tokenizer.h"
#include "trainer/loop/job.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

// Opens and checks everything that is read while training. Throws DataError, ConfigError.
struct RunData {
  struct Valid {
    std::string name;  // Empty: the only one.
    std::unique_ptr<EvalLoader> loader;
  };

  std::unique_ptr<TrainLoader> train;
  std::shared_ptr<const Samples> samples;  // What it deals out, where those are tokens; else null.
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

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_DATA_H_
