// Ranks with states whose every element is known, to save and to compare after a load.
#ifndef FSDP_TRAIN_TESTS_TRAINER_CHECKPOINT_RANK_STATES_H_
#define FSDP_TRAIN_TESTS_TRAINER_CHECKPOINT_RANK_STATES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/comm/store/store.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// A model of odd sizes: shards of other F begin and end inside its parameters.
std::vector<SegmentShape> OddModel();

// Element `index` of a parameter's state; `salt` tells checkpoints apart.
float ElementOf(const std::string& state, const std::string& parameter, int64_t index,
                uint64_t salt);

// The first element of a parameter that may be rows of another (NamedRows), counted in the whole.
int64_t FirstInWhole(const Placement& placement);

ShardPlace PlaceOf(int rank, int world, int shards);

// One rank's shards.
class RankStates {
 public:
  RankStates(const Layout& layout, const ShardPlace& place, const std::vector<std::string>& names);

  const std::vector<CheckpointState>& states() const { return states_; }
  void Fill(uint64_t salt);  // ElementOf, and zeros between parameters.
  void Poison();             // NaN everywhere.
  // Empty if all is as Fill(salt) leaves it, bit for bit; else the first difference.
  std::string Difference(uint64_t salt) const;

 private:
  std::vector<std::vector<float>> Expected(size_t state, uint64_t salt) const;

  const Layout& layout_;
  const ShardPlace place_;
  std::vector<std::vector<std::vector<float>>> buffers_;  // [state][unit]
  std::vector<CheckpointState> states_;
};

struct World {
  std::vector<SegmentShape> model = OddModel();
  WrapPolicy wrap;
  int world = 1, shards = 1;
  std::vector<std::string> states = {"master", "m", "v"};
  std::map<int64_t, double> losses;  // CheckpointMeta::Evaluation::loss by step.
  std::function<void(int rank, const std::vector<CheckpointState>&)> before_save;  // May be null.

  Layout MakeLayout() const { return fsdp::MakeLayout(model, wrap, shards); }
};

CheckpointMeta MetaOf(int64_t step);

// Saves with ranks that are threads; the salt is the step. Returns each rank's exception, "" for
// none; behind "exit <code>: " where it is no CheckpointError.
std::vector<std::string> Save(const World& world, const std::string& checkpoints, int64_t step,
                              int64_t keep_last = 0);
// The same on the caller's store; another salt tells two checkpoints of one step apart.
std::vector<std::string> Save(const World& world, const std::string& checkpoints, int64_t step,
                              int64_t keep_last, Store& store, int64_t attempt,
                              std::optional<uint64_t> salt = std::nullopt);

// Loads each shard in turn and compares. Returns the first error, empty without any; errors of the
// load are "rank 1: " and their text.
std::string LoadAndCompare(const World& world, const std::string& directory, uint64_t salt);

using testing::FreshDirectory;
std::vector<std::string> ListSorted(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_CHECKPOINT_RANK_STATES_H_
