// What a run says of itself to people, before its first step and behind its last one.
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_WORDS_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_WORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/recipe/recipe.h"

namespace fsdp {

// "366k parameters", and where some are frozen "trains 37.0k of 1.60M parameters".
std::string WhatTrains(int64_t trained, int64_t parameters);

// "saves every 200 steps and at the end, and keeps the newest 3".
std::string WhatIsSaved(const CheckpointRecipe& checkpoint);

// A source of data.train over the whole run.
struct SourceUse {
  int64_t samples = 0;  // That the run reads.
  int64_t windows = 0;  // Of an epoch.
};
// "0.92 epochs of 1.78M tokens", of several sources ", 3.1 of 12.3k" for each more.
std::string HowMuchData(const std::vector<SourceUse>& sources, int64_t seq_len);

// What one types after a run that is done, a line each. `program` as it was typed; `checkpoint`:
// the newest one's directory, empty where there is none; `speaks`: a tokenizer is known.
std::vector<std::string> WhatNext(const std::string& program, const std::string& run_directory,
                                  const std::string& checkpoint, bool speaks);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_WORDS_H_
