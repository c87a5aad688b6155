// Says what a directory without weights for this program is, and the command that helps.
// Tests: tests/trainer/weights/hf_hints_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_HINTS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_HINTS_H_

#include <string>

namespace fsdp {

// For what looks like a model of the Hugging Face Hub: `owner/name`. All of these continue a
// message, or are empty.
std::string HowToDownload(const std::string& name);

// For a directory without safetensors: weights of another format, which transformers converts.
std::string HowToGetWeights(const std::string& directory);

// For a directory that is no model: a folder of the Hub's cache (models--owner--name), whose
// snapshots are models; otherwise HowToGetWeights().
std::string WhatItIs(const std::string& directory);

// Throws CheckpointError where a directory that should hold a checkpoint, a run or a config.json
// has something else that is known.
void RefuseWhatIsNoCheckpoint(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_HINTS_H_
