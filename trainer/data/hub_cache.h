// Folders of the Hugging Face Hub's cache (models--owner--name, datasets--owner--name), whose
// snapshots are what a user means.
// Tests: tests/trainer/weights/hf_hints_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_HUB_CACHE_H_
#define FSDP_TRAIN_TRAINER_DATA_HUB_CACHE_H_

#include <string>

namespace fsdp {

// Whether a directory is such a folder, and which snapshot is meant: that of refs/main, or else the
// first. Continues a message as a sentence of its own; empty: it is none.
std::string WhereInHubCache(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_HUB_CACHE_H_
