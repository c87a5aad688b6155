// Opens the sources of a recipe whose data.objective makes inputs and targets, and puts them into
// the loaders that fill a run's batches.
// Tests: tests/trainer/loop/pairs_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_PAIR_DATA_H_
#define FSDP_TRAIN_TRAINER_LOOP_PAIR_DATA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/data_files.h"
#include "trainer/data/pairs/pair_rows.h"
#include "trainer/loop/row_loaders.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

// Functions that open a source under its key: as text or tokens, as pairs, and its first `count`
// sentinels. The first two add the files that they read.
struct PairOpeners {
  using Files = std::vector<DataFile>;
  std::function<std::shared_ptr<const TokenSource>(const SourceRecipe&, const std::string& key,
                                                   Files& files)>
      text;
  std::function<PairRows::Fitted(const SourceRecipe&, const std::string& key, Files& files)> pairs;
  std::function<std::vector<int32_t>(const SourceRecipe&, const std::string& key, int64_t count)>
      sentinels;
};

// OpenData() for another objective than `causal`.
RowLoaders OpenPairs(const Recipe& recipe, const PairLengths& lengths, const PairOpeners& open,
                     int data_ranks, uint64_t seed, const ValidRecipe& held_out, DataFiles& files);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PAIR_DATA_H_
