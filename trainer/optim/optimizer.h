// Optimizers over flat shards: this rank's part of each flat parameter, whatever parameters lie in
// it. State is laid out as the shards are, so it is saved and resharded as they are.
#ifndef FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_
#define FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/fsdp/executor.h"
#include "trainer/optim/kind.h"
#include "trainer/optim/parameter_groups.h"

namespace fsdp {

struct OptimizerOptions {
  using Kind = OptimizerKind;

  Kind kind = Kind::kAdamW;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // AdamW.
  double momentum = 0;                           // SGD.
  double weight_decay = 0.1;  // On the slices that take part in it (ParameterSlice::decay).
  std::vector<ParameterGroup> groups;
  uint64_t seed = 0;  // Of the rounding of what is kept in bf16 (ops/update.h).
};

// A state tensor: one shard a flat parameter, of its DTypes::state, empty for a frozen one.
struct ShardState {
  std::string name;  // "m", "v", "momentum": as in checkpoints.
  std::vector<View> shards;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates that have landed so far: 0 to begin with. The device counts on from here, so a step
  // that it skips corrects no bias; the learning rate goes by steps.
  virtual void SetUpdates(Stream& stream, int64_t updates) = 0;
  // A resumed run keeps the seed that it began with: before its first step.
  virtual void SetSeed(uint64_t seed) = 0;
  // Enqueues what the updates of a step have in common, before them. inputs: StepInputs;
  // coefficient: as ShardUpdate's.
  virtual void Begin(Stream& stream, ConstView inputs, ConstView coefficient) = 0;
  // Enqueues an update, on a stream of the device or, of what lies in host memory, of the host: one
  // pass, which also writes the copy and, where it is given one, an average
  // of the masters (fp32, a shard), with this decay.
  virtual void Step(Stream& stream, const ShardUpdate& update, View average = {},
                    double decay = 0) = 0;
  virtual const std::vector<ShardState>& state() const = 0;
};

// Takes its state's memory from the executor.
std::unique_ptr<Optimizer> CreateOptimizer(const OptimizerOptions& options, Executor& executor,
                                           const Model& model);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_OPTIMIZER_H_
