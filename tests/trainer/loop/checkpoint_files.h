// The files that a run has saved.
#ifndef FSDP_TRAIN_TESTS_TRAINER_LOOP_CHECKPOINT_FILES_H_
#define FSDP_TRAIN_TESTS_TRAINER_LOOP_CHECKPOINT_FILES_H_

#include <filesystem>
#include <map>
#include <string>

#include "trainer/core/atomic_file.h"

namespace fsdp::testing {

// All files of all checkpoints but the manifests, which hold the run's directory.
inline std::map<std::string, std::string> CheckpointFiles(const std::string& run) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(run + "/checkpoints")) {
    if (entry.is_regular_file() && entry.path().filename() != "manifest.json") {
      files[fs::relative(entry.path(), run)] = ReadWholeFile(entry.path());
    }
  }
  return files;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_LOOP_CHECKPOINT_FILES_H_
