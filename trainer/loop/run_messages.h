// The words of a run about itself for people, before its first step and behind its last one.
#ifndef FSDP_TRAIN_TRAINER_LOOP_RUN_MESSAGES_H_
#define FSDP_TRAIN_TRAINER_LOOP_RUN_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/samples/fitted_samples.h"

namespace fsdp {

struct CheckpointRecipe;
struct AgreedStop;
struct DataRecipe;
struct Job;
struct RunDirectory;
struct SkippedRecord;

// "366k parameters", and where some are frozen "trains 37.0k of 1.60M parameters".
std::string WhatTrains(int64_t trained, int64_t parameters);

// "saves every 200 steps and at the end, and keeps the newest 3".
std::string WhatIsSaved(const CheckpointRecipe& checkpoint);

// A source of data.train over the whole run.
struct SourceUse {
  int64_t rows = 0;   // Rows that the run reads.
  int64_t epoch = 0;  // Rows of an epoch, and the tokens in them.
  int64_t tokens = 0;
  int64_t samples = 0;            // Whole ones that share rows; 0: windows.
  std::string noun = "document";  // The word for one of them.
};
// "0.92 epochs of 1.78M tokens", and ", 3.1 of 12.3k" for each further source. Whole samples add "
// in 4.56k documents, which fill 98.7 % of 1.23k rows".
std::string DescribeDataUse(const std::vector<SourceUse>& sources, int64_t seq_len);

// A line for each reason for which samples of a source are in no row, or not with all tokens.
std::vector<std::string> WhatIsLeftOut(const std::string& source,
                                       const FittedSamples::Counts& counts, const DataRecipe& data);

// Commands to type after a run that is done, a line each. `program` is as it was typed.
// `checkpoint`: the directory of the one to take, empty where there is none. `exports`: Hugging
// Face has such models.
enum class Speech { kNone, kText, kChat };  // No tokenizer is known; texts; conversations.
std::vector<std::string> NextCommands(const std::string& program, const std::string& run_directory,
                                      const std::string& checkpoint, Speech speech, bool exports);

// "step 5 changed nothing: loss or gradient not finite, with a loss scale of 4; the next is 2".
std::string ChangedNothing(const SkippedRecord& record, double next_scale);
// Why a run ends with exit code 7 at a step, the last of `skipped` that changed nothing. `most`:
// train.max_skipped_steps.
std::string WhyNotFinite(int64_t step, double loss, double grad_norm, int64_t skipped,
                         int64_t most);
// "stopping after step 5 with a checkpoint; ...", by its cause. `fake`: there is no checkpoint.
std::string WhyStopping(const AgreedStop& stop, bool fake);

// A line for the terminal of another host than rank 0's, by its first rank; otherwise "". All ranks
// call it.
std::string WhereToLook(const Job& job, const RunDirectory& directory);

// "12.3k tokens"; "48 samples" where each has one target, which is no token.
std::string HowMany(int64_t samples, int64_t targets);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RUN_MESSAGES_H_
