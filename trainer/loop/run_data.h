// A run's data: the sources of its recipe, opened, in the loaders that fill its batches.
// Tests: tests/trainer/loop/packing_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_DATA_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_DATA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/data_files.h"
#include "trainer/data/loader.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/loop/job.h"
#include "trainer/recipe/open_progress.h"

namespace fsdp {

class ModelShape;
struct Recipe;
struct ValidRecipe;

// Opens and checks everything that is read while training. Throws DataError, ConfigError.
struct RunData {
  struct Valid {
    std::string name;  // Empty: the only one.
    std::unique_ptr<EvalLoader> loader;
  };

  std::unique_ptr<TrainLoader> train;
  std::shared_ptr<const Samples> samples;  // Those of `train` where they are tokens; else null.
  // The tokenizer for text that the model says: that of data.train. Null where nobody names one,
  // and then nothing is sampled.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<Valid> valid;          // Empty: no evaluation.
  DataFiles files;                   // All that are opened.
  std::vector<std::string> classes;  // Names of a classifier's classes; empty: they are numbers.

  uint64_t Hash() const;  // Covers the files, but not their paths.
};
// `data_ranks`: the mesh's data_size(). `seed` orders the samples. `held_out` is the data.valid
// that says which tokens of data.train are never trained on: the recipe's, or in a resumed run that
// of the recipe it began with. Tokenises text where that is still to be done: `progress` hears of
// it, and can end it with Error(kStopped).
// Speaks on the job's console, whichever rank of the host tokenises, makes remarks on rank 0 alone,
// and stops with the job.
OpenProgress ProgressFor(const Job& job);
RunData OpenData(const Recipe& recipe, const ModelShape& shape, int data_ranks, uint64_t seed,
                 const ValidRecipe& held_out, const OpenProgress& progress = {});
// Opens the same as OpenData(), but tokenises nothing: for text that goes through a tokenizer it
// checks the files' formats and the tokenizer. Throws as OpenData() does. `progress` also hears of
// a vocabulary that is much larger than the tokenizer's.
void CheckData(const Recipe& recipe, const ModelShape& shape, const OpenProgress& progress = {});

// The recipe with train.epochs turned into train.steps by `data`, which is the recipe's. Unchanged
// without train.epochs. Throws ConfigError where the epochs make no number of steps.
Recipe WithSteps(const Recipe& recipe, const RunData& data);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_DATA_H_
