// An optimizer over flat shards. A shard is this rank's part of a flat parameter, whatever
// parameters lie in it.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_
#define FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/optim/adafactor.h"
#include "trainer/optim/muon.h"
#include "trainer/optim/update_rule.h"

namespace fsdp {

class Executor;
class Model;

// One state tensor, named by KeptStates(): a shard for each flat parameter, empty for a frozen one.
struct ShardState {
  std::string name;
  std::vector<View> shards;
  // The index, among the optimizer's states, of the one whose blocks' absmax this is.
  std::optional<size_t> absmax_of = {};
};

class Optimizer {
 public:
  // Allocates its state through the executor; keeps references to both.
  Optimizer(const OptimizerOptions& options, Executor& executor, const Model& model);

  // Sets the number of updates that have landed, 0 at first. The device counts on from here, so a
  // skipped step corrects no bias. The learning rate depends on the step, not on this number.
  void SetUpdates(Stream& stream, int64_t updates);
  // Before the first step of a resumed run: sets the seed that the run began with.
  void SetSeed(uint64_t seed) { seed_ = seed; }
  // Enqueues the computation that all updates of a step share, before them. inputs: StepInputs;
  // coefficient: the one that ShardUpdate names.
  void Begin(Stream& stream, ConstView inputs, ConstView coefficient);
  // Enqueues an update in one pass, which also writes the copy and the average. `stream`: the
  // device's, or the host's for a flat parameter that lies in host memory.
  void Step(Stream& stream, const ShardUpdate& update);
  // Enqueues an action on matrices, with Muon and Adafactor.
  void RunMatrices(Stream& stream, const MatrixAction& action);
  // Updates rows of embedding tables by row-wise Adagrad, whatever the kind.
  void StepRows(Stream& stream, const RowUpdate& update) const;
  const std::vector<ShardState>& state() const { return state_; }
  // Null where nothing is updated whole.
  const Muon* muon() const { return muon_ ? &*muon_ : nullptr; }
  // Tensors beside the shards, the same on all ranks. Their next update waits for `copied`.
  std::vector<OwnState> own() const;
  void Hold(const EventPtr& copied);

 private:
  const OptimizerOptions options_;
  uint64_t seed_ = options_.seed;
  const View counted_, factors_;          // StepState, UpdateFactors.
  View host_factors_;                     // A copy, for updates of the host; empty: there are none.
  std::vector<std::vector<View>> rules_;  // By flat parameter and part.
  std::vector<bool> on_host_;             // By flat parameter: whether the host updates it.
  std::vector<ShardState> state_;         // In the order of KeptStates().
  std::optional<Muon> muon_;              // Where flat parameters are updated whole.
  std::optional<Adafactor> adafactor_;    // Updates all, if there is one.
  std::vector<bool> whole_;               // By flat parameter.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_
