// Where a host keeps what later runs need not make again.
// Tests: tests/e2e/cuda_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_CACHE_DIRECTORY_H_
#define FSDP_TRAIN_TRAINER_CORE_CACHE_DIRECTORY_H_

#include <string>

namespace fsdp {

// fsdp-train/<name> in $XDG_CACHE_HOME, else ~/.cache; where neither is an absolute path, a user's
// own directory in /tmp. The directory need not exist.
std::string CacheDirectory(const std::string& name);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_CACHE_DIRECTORY_H_
