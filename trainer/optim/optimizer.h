// An optimizer over flat shards: this rank's part of each flat parameter, whatever parameters lie
// in it.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_
#define FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"
#include "trainer/optim/update_rule.h"

namespace fsdp {

// A state tensor, one of KeptStates(): one shard a flat parameter, empty for a frozen one.
struct ShardState {
  std::string name;
  std::vector<View> shards;
};

class Optimizer {
 public:
  // Takes its memory from the executor; both are kept.
  Optimizer(const OptimizerOptions& options, Executor& executor, const Model& model);

  // Updates that have landed so far: 0 to begin with. The device counts on from here, so a step
  // that it skips corrects no bias; the learning rate goes by steps.
  void SetUpdates(Stream& stream, int64_t updates);
  // A resumed run keeps the seed that it began with: before its first step.
  void SetSeed(uint64_t seed) { seed_ = seed; }
  // Enqueues what the updates of a step have in common, before them. inputs: StepInputs;
  // coefficient: as ShardUpdate's.
  void Begin(Stream& stream, ConstView inputs, ConstView coefficient);
  // Enqueues an update, on a stream of the device or, of what lies in host memory, of the host: one
  // pass, which also writes the copy and the average.
  void Step(Stream& stream, const ShardUpdate& update);
  // The same of rows of embedding tables, by row-wise Adagrad, whatever the kind.
  void StepRows(Stream& stream, const RowUpdate& update) const;
  const std::vector<ShardState>& state() const { return state_; }

 private:
  const OptimizerOptions options_;
  uint64_t seed_ = options_.seed;
  const View counted_, factors_;          // StepState, UpdateFactors.
  View host_factors_;                     // A copy, for updates of the host; empty: there are none.
  std::vector<std::vector<View>> rules_;  // By flat parameter and part.
  std::vector<bool> on_host_;             // By flat parameter: where it is updated.
  std::vector<ShardState> state_;         // As KeptStates() has them.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_
