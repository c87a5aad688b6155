// Runs the schedule of a step on one rank: holds shards and slots, drives streams, and follows the
// model's code with a cursor. Entering another segment than the schedule names aborts with both
// names: what the planner added up and the checker proved is what runs.
#ifndef FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_H_
#define FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/traffic.h"
#include "trainer/fsdp/executor_memory.h"
#include "trainer/fsdp/executor_step.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/model_buffers.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/moves.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/step_position.h"
#include "trainer/fsdp/table_exchange.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class Executor final : public SegmentHooks {
 public:
  // Holds references to device, model, allocator and communicators. Persistent memory is taken from
  // the allocator, in phase kPersistent, in this call and in NewShards() and NewBuffer(). The
  // communicators' mesh is MeshFor() these options, with options.communicators queues. Throws
  // std::invalid_argument for masters that are neither fp32 nor bf16.
  Executor(Device& device, PhasedAllocator& allocator, Model& model, const ExecutorOptions& options,
           const MeshCommunicators& communicators);
  ~Executor() override;
  const Layout& layout() const { return layout_; }
  const Schedule& schedule(Mode mode) const { return schedules_[static_cast<int>(mode)]; }
  // For tests, before the first step: runs another schedule of the same runs and slots.
  void ReplaceSchedule(Mode mode, Schedule schedule);
  const Mesh& mesh() const { return communicators_.mesh(); }
  int shard_rank() const { return shard_rank_; }
  // For work between steps: it comes behind all that was before, and the next step begins, on every
  // stream, behind all that is there.
  Stream& compute();
  Stream& host();  // The same, for work on what lies in host memory.
  // Where a flat parameter is updated, and its gradient lies: what the host updates in pinned
  // memory; and the stream between steps for work on its shards.
  MemoryPlace PlaceOf(int flat) const { return memory_.storage.UpdatePlace(flat); }
  Stream& StreamFor(int flat) { return PlaceOf(flat) == MemoryPlace::kDevice ? compute() : host(); }
  // Of its shards master, state and average lie there, too, or are spilled: memory of the disk.
  const SpilledShards& spilled() const { return memory_.spilled; }
  SpillMemory* spill() const { return allocator_.spill(); }
  // Once there are all shards: takes the slots in which what is spilled is updated.
  void TakeSpillSlots() { memory_.spilled.TakeSlots(allocator_, schedules_[0].spill_slots); }
  // Between steps: one shard of a flat parameter into another, cast where dtypes differ.
  void CastShard(int flat, const View& from, const View& to);
  void UseForProducts(GemmLibrary& library);  // From here on, on CUDA. It outlives the executor.
  // For who copies shards on a stream of its own: it waits until all updates so far have landed;
  // and then that unit's update, and what goes to compute() or host(), waits for `copied`.
  void WaitUntilLanded(Stream& stream);
  void HoldUpdate(int unit, const EventPtr& copied) { copied_[unit] = copied; }

  // This rank's shards, [shard_size], by flat parameter: the master weights; the copy of them that
  // is gathered, the same memory where `compute` is the dtype of the master, or the gather casts,
  // and both lie in one place; and the gradient, in which ranks and micro-batches are summed: fp32,
  // with F = 1 `grad`, and divided by gradient_divisor(). Of a frozen one it is empty, [0].
  const View& master(int flat) const { return memory_.Shard(Resource::kMaster, flat); }
  const View& compute_shard(int flat) const { return memory_.Shard(Resource::kComputeShard, flat); }
  const View& gradient(int flat) const { return memory_.Shard(Resource::kGradientShard, flat); }
  float gradient_divisor(int flat) const { return memory_.divided[flat] ? memory_.divisor : 1; }
  ModelBuffers& buffers() { return memory_.buffers; }
  TableExchange* tables() const { return tables_.get(); }  // Null: the model has none.
  // Another one of each flat parameter that trains, in a dtype by its own, in the place of its
  // state: persistent memory, zero.
  std::vector<View> NewShards(MemoryKind kind, const std::function<DType(const DTypes&)>& dtype);
  // Persistent, contents undefined: what a forward pass leaves for the host, logits say.
  View NewBuffer(int64_t elements, DType dtype, MemoryUse use = MemoryKind::kActivations);

  // Enqueues initial values, of this rank's elements, rows of tables, and the buffers:
  // `fill(parameter, begin, values)` gives elements [begin, begin + values.size()), in the host's
  // memory, on threads of the compute stream. Padding becomes zero.
  using FillParameter = std::function<void(const Parameter&, int64_t begin, std::span<float>)>;
  void Initialize(const FillParameter& fill, const ModelBuffers::Fill& fill_buffer = nullptr,
                  const TableExchange::Fill& fill_rows = nullptr);
  // For who writes master weights in another way, before a step: enqueues their compute copies.
  void MastersWritten();
  // Enqueues what it, if in use, goes on from.
  void ResumeLossScaler(const LossScalerState& state);
  using Step = ExecutorStep;
  // Enqueues a whole step. First waits, and for nothing else, until the step before the last one is
  // done; its scalars are then to be had from Result().
  void Run(const Step& step);
  int64_t steps() const { return steps_; }  // Enqueued so far.
  // Scalars of step `index`, from 0, of the last two. Blocks until they are; throws what failed it.
  StepScalars Result(int64_t index);
  StepAccount Account(int64_t index);  // The same of these.
  void Synchronize();                  // Blocks until everything enqueued is done.
  // What the streams are in, or what they failed in: "step 12, backward of unit 5
  // (transformer.h.4), op reduce_scatter", several joined by "; ". Streams that wait for others are
  // left out where there is one that does not. Empty: all are idle, or the device cannot tell.
  std::string Where() const;
  void Enter(int segment, Pass pass) override;
  void Leave(int segment, Pass pass) override;
  bool HasBackward(int segment) const override;
  BatchRanks batch_ranks() const override;
  void SumOverRanks(const View& values) override;

 private:
  // Elements [at, at + host.NumElements()) of this rank's shard into the host's memory.
  void FillShard(ThreadPool& pool, int flat, int64_t at, const View& host,
                 const FillParameter& fill) const;
  View NewShard(int flat, MemoryKind kind, DType dtype);
  bool scales_loss() const { return memory_.scaler.data != nullptr; }
  CachingBuffers* caching() const { return allocator_.caching(); }
  View scalar(int index) const { return memory_.scalars.Slice(index, 1); }

  void AdvanceToRun();
  const Action& CurrentRun(int segment, Pass pass, const char* what) const;
  void WaitFor(const Action& action);
  Stream& stream(StreamId id) { return *streams_[static_cast<int>(id)]; }
  void JoinOthers();  // The compute stream, behind what was offloaded.
  void HoldOthers();  // All streams but compute, until what it has now is done.
  // Between steps: the part of the shard, or where host() reads it to.
  Located InMemory(const ShardPart& part, const Located& shard);
  void Signal(size_t index);
  void Execute(const Action& action);
  void WriteInputs();
  void MoveBetweenSteps(int flat, const Located& from, const Located& to);
  void Bind(int unit, bool value, bool gradient);
  void BindShard(int flat);  // Where nothing is gathered: what the model computes with.

  // Where a flat parameter's part in a use is; of an evaluation's weights, where it is given such.
  Located At(const Use& use, int flat) const;
  // That part of it; of what is whole, this rank's shard or part.
  Located At(const Use& use, const ShardPart& part, ShardExtent extent) const;
  ShardExtent ExtentOf(const Use& use, int flat) const;
  // The part of a flat parameter that a use is about; none where it is about another one's.
  std::optional<ShardPart> StretchOf(const Use& use, int flat) const;
  std::span<const int> FlatsOf(const Action& action) const;
  void MoveTo(StreamId stream, const Located& from, const Located& to);

  // Each enqueues one kind of action: executor_actions.cc, executor_reduce.cc.
  void Begin(Stream& stream);
  void Load(const Action& action);
  void Move(const Action& action);
  void MoveSpilled(const Action& action);
  void MoveActivations(const Action& action);
  void Gather(const Action& action);
  void FillAll(const Action& action, float value);
  void Reduce(const Action& action);
  void ReduceInHops(StreamId stream, int flat, Located value, const Located& shard);
  void AllReduce(const Action& action, Resource wire, Scratch scratch);  // In place.
  void AllReduce(const Action& action, const View& data, DType dtype, Scratch scratch);
  void ExchangeSums(const Action& action, int flat, const Located& shard);
  void SumSquares(const Action& action);
  void ReduceScalars(const Action& action);
  void Clip(Stream& stream);
  void Update(const Action& action);
  void RunTables(const Action& action);  // executor_tables.cc, as the next.
  void PrepareTables();  // How many rounds the step has: blocks until all ranks agree.
  Device& device_;
  PhasedAllocator& allocator_;
  Model& model_;
  const ExecutorOptions options_;
  const MeshCommunicators& communicators_;
  const Layout layout_;
  const int shard_rank_;
  Schedule schedules_[2];
  Traffic traffic_[2];                            // By steps_ % 2. Outlives what the streams hold.
  std::vector<std::unique_ptr<Stream>> streams_;  // By StreamId; null where it is not used.
  ExecutorMemory memory_;
  Moves moves_;
  std::vector<std::vector<Parameter*>> parameters_;  // By flat parameter, as the layout's.
  std::unique_ptr<TableExchange> tables_;
  std::vector<EventPtr> copied_;  // By unit. Null: nobody copies, or its update waits already.
  bool joined_ = true;            // compute() knows of all that was offloaded.
  bool compute_shards_hold_others_ = false;  // Of an evaluation: the masters' are to be made again.
  // The step that is being enqueued.
  const Step* step_ = nullptr;
  Tape* tape_ = nullptr;  // Of its micro-batch.
  const Schedule* running_ = nullptr;
  size_t cursor_ = 0, summed_ = 0;                // The latter: kSumBatch of the run so far.
  std::vector<EventPtr> events_, events_before_;  // By action: of this step, and of the last.
  bool trained_ = false;                          // What was enqueued last is a training step.
  bool follows_training_ = false;                 // The step that is being enqueued is one, too.
  int64_t steps_ = 0;
  EventPtr ends_[2];  // By steps_ % 2, as the next two.
  StepClock clocks_[2];
  std::optional<CachingStatistics> peaks_[2];
  StepClock::Part work_ = &StepTimes::forward;  // Of the last action that was one.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_H_
