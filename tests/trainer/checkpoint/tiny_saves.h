// Saves that are small enough to be done thousands of times, one for each way in which the one
// checkpoint takes the place of another.
#ifndef FSDP_TRAIN_TESTS_TRAINER_CHECKPOINT_TINY_SAVES_H_
#define FSDP_TRAIN_TESTS_TRAINER_CHECKPOINT_TINY_SAVES_H_

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/file_calls.h"
#include "tests/trainer/checkpoint/rank_states.h"

namespace fsdp {

World TinyWorld(int world);

// Names a checkpoint: the salt tells two of one step apart.
struct Saved {
  int64_t step = 0;
  uint64_t salt = 0;
  bool operator==(const Saved&) const = default;
};

struct TinySave {
  std::string name;
  World world;
  std::vector<Saved> before;  // One after the other, all kept.
  Saved saved;
  int64_t keep_last = 0;
  bool can_exchange = true;  // As the file system does.

  // Each rank's exception, "" for none.
  std::vector<std::string> Run(const std::string& checkpoints) const;
  void Before(const std::string& checkpoints) const;
  testing::Answer FileSystem(const testing::FileCall& call) const;
};
std::vector<TinySave> TinySaves();
void PrintTo(const TinySave& save, std::ostream* out);  // For googletest.

// The checkpoint that a run would go on from, by its contents; nothing where there is none.
// `error`: what is wrong with what it finds.
std::optional<Saved> FindSaved(const TinySave& save, const std::string& checkpoints,
                               std::string& error);

// The job's next save: it works, and its checkpoint is found. Returns what is wrong; empty where
// nothing is.
std::string NextSave(const TinySave& save, const std::string& checkpoints);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_CHECKPOINT_TINY_SAVES_H_
