// A Hugging Face directory as a checkpoint of step 0.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_IMPORT_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_IMPORT_H_

#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_writer.h"

namespace fsdp {

struct HfImported {
  SavedCheckpoint saved;
  std::vector<std::string> ignored;  // Keys of config.json that are ignored.
};

// Makes the checkpoint `out` (WriteCheckpoint) for a world of one: the master weights in fp32, the
// shape, and no recipe, optimizer state or tokens seen. Every tensor of the directory must be the
// model's, or known to be of no use, and finite, unless `allow_nonfinite`. Throws CheckpointError.
HfImported ImportHf(const std::string& directory, const std::string& out,
                    const ByteProgress& progress, bool allow_nonfinite = false);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_IMPORT_H_
