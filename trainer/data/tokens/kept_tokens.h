// The sets of tokens that OpenTextTokens() (text_cache.h) keeps: listed and removed.
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENS_KEPT_TOKENS_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENS_KEPT_TOKENS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

struct KeptTokens {
  std::string directory;
  int64_t bytes = 0;
  int64_t tokens = 0;   // 0: not finished, or damaged.
  std::string inputs;   // "a.txt and 2 more files"; empty as above.
  bool in_use = false;  // A process writes it.
};

// The sets, by name; empty where there is no such cache. Other files are left out.
std::vector<KeptTokens> ListKeptTokens(const std::string& cache);

// Removes a set; returns false, and keeps it, while a process writes it. A run that trains on the
// set goes on: it has the files open. Throws DataError.
bool RemoveKeptTokens(const KeptTokens& kept);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENS_KEPT_TOKENS_H_
