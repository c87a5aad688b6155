// One rank's training state, built either on a real device or on the simulated one: executor,
// optimizer, and the steps that the loop is made of. The same code makes the memory plan and runs
// the job, so the two cannot part ways.
// Tests: tests/trainer/engine/bitwise_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_SESSION_H_
#define FSDP_TRAIN_TRAINER_ENGINE_SESSION_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/core/view.h"
#include "trainer/fsdp/executor_options.h"
#include "trainer/nn/eval_metric.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/optim/optimizer.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class Device;
class Executor;
class MeshCommunicators;
class Model;
class PhasedAllocator;
class Tape;

struct SessionOptions {
  ExecutorOptions executor;
  OptimizerOptions optimizer;
  LrSchedule lr;
  int64_t global_batch_size = 1;  // Samples.
  int data_threads = 1;           // CPU threads that fill a batch.
  bool train = true;              // Otherwise Train() is not called, and the model is frozen.
  bool eval = true;               // Plans memory for it.
  bool generate = false;          // Plans memory for a row of an Autoregressive model's scores.
  bool predict = false;           // Plans memory for a micro-batch of Predict().
  bool eval_ema = false;          // Eval(), Logits() and Predict() use averaged weights.
  bool snapshot = false;          // Plans memory for a copy of a checkpoint's contents.
};

// A buffer of the model, this rank's rows of embedding tables, or a tensor of the optimizer's.
struct BufferState {
  std::string name;
  View value;
  std::string owner = "";  // A parameter of the layout; empty: it belongs to the whole model.
};

class Session {
 public:
  // References are kept. Communicators as in Executor.
  Session(Device& device, PhasedAllocator& allocator, Model& model, const SessionOptions& options,
          const MeshCommunicators& communicators);
  ~Session();

  using Load = std::function<void(int micro_batch, const Batch& batch)>;

  // T0: the targets of a full global batch; and of a full micro-batch on all data ranks.
  int64_t FullTargets() const { return options_.global_batch_size * targets_; }
  int64_t WaveTargets() const;
  // Enqueues training step `step`, counted from 1, which has `targets` targets over all ranks.
  // `save` is this rank's wish for a checkpoint: all ranks act on the sum in the step's result.
  // `load_next` loads the step behind it: a model with embedding tables reads ids a step ahead.
  // Without `load_next`, as in the last step, the step behind begins by reading its ids.
  void Train(int64_t step, int64_t targets, bool save, Load load, Load load_next = nullptr);
  // Enqueues the loss of one micro-batch a rank. Result().loss becomes the sum over ranks of
  // weights x cross-entropy, times `scale`; second_sum() becomes the unscaled sum of eval_metric().
  void Eval(float scale, Load load);
  // Runs the model on row 0 of the batch that `load` fills. Returns its Autoregressive scores of
  // position `column`, valid on the host until the next call; empty on the sim device. Blocks.
  std::span<const float> Logits(int64_t column, Load load);
  // Runs Model::Predict() on the micro-batch that `load` fills, and returns its numbers as Logits()
  // does: [micro_batch_size, predictions()]. Blocks.
  std::span<const float> Predict(Load load);
  int64_t predictions() const;  // Numbers of a sample.
  const EvalMetric* eval_metric() const;
  int64_t outputs() const { return logits_.NumElements(); }  // Scores of a position.

  // Sets the averaged weights to the master weights. Call it once these have their initial values.
  // Does nothing without options().ema.
  void InitializeEma();

  // This rank's part of a checkpoint: master weights ("master"), the optimizer's state, the
  // averaged weights ("ema"), and the model's buffers, which all ranks hold alike. The host may
  // touch it between steps that are done. It is the device's memory where the host shares that,
  // elsewhere a copy as ToHost() and the host have left it. Spilled shards are on the disk, here
  // and in a snapshot (Executor::spilled()).
  const std::vector<ShardState>& state() const { return on_host_.state; }
  // All of these. rows: of all embedding tables, one table behind the other, and the rows'
  // optimizer sums (fsdp/table_exchange.h); row_moments: Muon's; factors: the optimizer's tensors
  // that all ranks hold alike. Each is empty where there are none.
  struct Kept {
    std::vector<ShardState> state;
    std::vector<BufferState> buffers, rows, row_moments, factors;
  };
  const Kept& kept() const { return on_host_; }
  // Enqueue the copy of the device's values to state(), or back, on the compute stream; nothing
  // where both are the same memory. Frozen parameters never change: they go to the host once.
  void ToHost();
  void ToDevice();
  // For options().snapshot: enqueues a copy of all that kept() has into host memory, on a
  // stream of its own. Steps go on meanwhile; only updates of units that are not copied yet wait.
  // The copy stays until the next snapshot, or the next ToHost() where state() is a copy already.
  struct Snapshot {
    const Kept& values;
    EventPtr taken;
  };
  Snapshot TakeSnapshot();

  Executor& executor() { return *executor_; }
  const Executor& executor() const { return *executor_; }
  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  const SessionOptions& options() const { return options_; }

 private:
  const SessionOptions options_;
  Device& device_;
  Model& model_;
  const int64_t targets_;  // Targets of a sample.
  // Puts copies of on_device_ for the host, and for snapshots, where they belong.
  void PlaceStateOnHost();
  void PlaceOnHost(std::vector<BufferState> Kept::*values);
  void NameSpilled() const;          // For messages about the disk.
  bool IsOnHost(size_t flat) const;  // Its master and state need not be copied for the host.
  // Copies a unit's shards: those on the device on `of_device`, the others on `of_host`.
  void CopyUnit(int unit, Stream& of_device, Stream& of_host, const std::vector<ShardState>& from,
                const std::vector<ShardState>& to, bool frozen) const;
  void CopyOnCompute(const std::vector<ShardState>& from, const std::vector<ShardState>& to,
                     bool frozen);
  // Runs `forward`, which writes `on_device`, and returns what it wrote, on the host.
  std::span<const float> Forward(const std::function<void(Tape& tape, const Batch& batch)>& forward,
                                 const View& on_device, const View& on_host, Load load);
  const std::vector<View>* EvalWeights() const { return options_.eval_ema ? &ema_ : nullptr; }

  std::vector<View> ema_;
  Kept on_device_, on_host_, snapshot_;
  bool frozen_on_host_ = false;  // In on_host_.state.
  View logits_, host_logits_, predicted_, host_predicted_;
  int64_t last_step_ = 0;               // The last enqueued step.
  std::optional<Optimizer> optimizer_;  // Made behind the executor, and gone behind its streams.
  // Last, as owners of streams are (stream.h). For options().snapshot; host_snapshots_: for shards
  // in host memory, if there are any.
  const std::unique_ptr<Executor> executor_;
  std::unique_ptr<Stream> snapshots_, host_snapshots_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_SESSION_H_
