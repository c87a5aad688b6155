// The files that ranks have written into a checkpoint.
#ifndef FSDP_TRAIN_TESTS_E2E_RANK_FILES_H_
#define FSDP_TRAIN_TESTS_E2E_RANK_FILES_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {

// The bytes of all ranks' files, by name. Without the manifest: it holds the recipe, and with the
// recipe the run's directory.
inline std::map<std::string, std::string> RankFiles(const std::string& run_directory,
                                                    int64_t step) {
  std::map<std::string, std::string> files;
  const std::string directory = run_directory + "/checkpoints/step_" + std::to_string(step);
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name != "manifest.json") files[name] = ReadFile(entry.path());
  }
  return files;
}

}  // namespace fsdp::e2e

#endif  // FSDP_TRAIN_TESTS_E2E_RANK_FILES_H_
