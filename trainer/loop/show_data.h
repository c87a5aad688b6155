// `fsdp-train data`: what a run will read, before a step of it is spent.
// Tests: tests/e2e/data_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_SHOW_DATA_H_
#define FSDP_TRAIN_TRAINER_LOOP_SHOW_DATA_H_

#include <cstdint>
#include <ostream>

#include "trainer/recipe/open_progress.h"

namespace fsdp {

struct ShowDataOptions {
  int64_t samples = 3;   // Shows the first so many samples, in the order of training.
  bool json = false;     // One JSON object.
  bool colours = false;  // Targets are green. Otherwise they stand between « and ».
};

// Opens the recipe's data as the first start of a run does, and writes samples and counts to `out`.
// Tokenises text where that is still to be done, into the run's own cache. Holds one sample in the
// host's memory; makes no parameter and asks no device. Throws what OpenData() throws.
void ShowData(const Recipe& recipe, const ShowDataOptions& options, const OpenProgress& progress,
              std::ostream& out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_SHOW_DATA_H_
