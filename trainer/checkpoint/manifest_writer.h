// The text of a manifest, as manifest.h has it.
// Tests: tests/trainer/checkpoint/manifest_test.cc
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_MANIFEST_WRITER_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_MANIFEST_WRITER_H_

#include <string>

#include "trainer/checkpoint/manifest.h"

namespace fsdp {

// Both throw CheckpointError for text that is not UTF-8, except in paths of data. Ranks send a
// file's JSON to the rank that writes the manifest.
std::string ManifestToText(const Manifest& manifest);
std::string ManifestFileToJson(const ManifestFile& file);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_MANIFEST_WRITER_H_
