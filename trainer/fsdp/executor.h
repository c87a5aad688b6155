// Runs the schedule of a step on one rank: holds shards and slots, drives streams, and follows the
// model's code with a cursor. Entering another segment than the schedule names aborts with both
// names, so the step that runs is the one that the planner added up and the checker proved.
#ifndef FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_H_
#define FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/traffic.h"
#include "trainer/fsdp/executor_callbacks.h"
#include "trainer/fsdp/executor_memory.h"
#include "trainer/fsdp/executor_step.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/model_buffers.h"
#include "trainer/fsdp/moves.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/table_exchange.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class Model;

class Executor final : public SegmentHooks {
 public:
  // Keeps references to all but the options. Takes persistent memory, as NewShards() and
  // NewBuffer() do. `communicators`: for MeshFor() the options, with options.communicators queues.
  // Throws std::invalid_argument for masters not in fp32 or bf16.
  Executor(Device& device, PhasedAllocator& allocator, Model& model, const ExecutorOptions& options,
           const MeshCommunicators& communicators);
  ~Executor() override;
  const Layout& layout() const { return layout_; }
  const Schedule& schedule(Mode mode) const { return schedules_[static_cast<int>(mode)]; }
  // For tests, before the first step: runs another schedule of the same runs and slots.
  void ReplaceSchedule(Mode mode, Schedule schedule);
  const Mesh& mesh() const { return communicators_.mesh(); }
  int shard_rank() const { return shard_rank_; }
  // For work between steps: behind all earlier work, and before the next step's on every stream.
  Stream& compute();
  Stream& host();  // The same for work on host memory.
  // The place of a flat parameter's update and gradient; the stream for its shards between steps.
  MemoryPlace PlaceOf(int flat) const { return memory_.storage.UpdatePlace(flat); }
  Stream& StreamFor(int flat) { return PlaceOf(flat) == MemoryPlace::kDevice ? compute() : host(); }
  // Master, state and average lie in PlaceOf(), too, unless they are spilled to the disk.
  const SpilledShards& spilled() const { return memory_.spilled; }
  SpillMemory* spill() const { return allocator_.spill(); }
  // Between steps: copies one shard of a flat parameter into another, cast where dtypes differ.
  void CastShard(int flat, const View& from, const View& to);
  void UseForProducts(GemmLibrary& library);  // On CUDA, from here on. Must outlive this.
  // WaitUntilLanded(): `stream`, which copies shards, waits for all updates so far. HoldUpdate():
  // the unit's next update, and work on compute() and host(), waits for `copied`.
  void WaitUntilLanded(Stream& stream);
  void HoldUpdate(int unit, const EventPtr& copied);

  // This rank's shards, [shard_size], by flat parameter. compute_shard() is what is gathered. It
  // shares the master's memory where both lie in one place and `compute` is the master's dtype or
  // the gather casts. gradient() is the sum over ranks and micro-batches, divided by
  // gradient_divisor(): fp32, or `grad` with F = 1, and empty, [0], for a frozen flat parameter.
  const View& master(int flat) const { return memory_.Shard(Resource::kMaster, flat); }
  const View& compute_shard(int flat) const { return memory_.Shard(Resource::kComputeShard, flat); }
  const View& gradient(int flat) const { return memory_.Shard(Resource::kGradientShard, flat); }
  float gradient_divisor(int flat) const { return memory_.divided[flat] ? memory_.divisor : 1; }
  ModelBuffers& buffers() { return memory_.buffers; }
  TableExchange* tables() const { return tables_.get(); }  // Null: the model has none.
  // Allocates zeroed shards of all trainable flat parameters, in persistent memory, where the
  // optimizer state lives: for each of `forms`, which chooses each shard's form, one list. Takes
  // the slots in which spilled shards are updated: to be called once.
  using FormOf = std::function<ShardForm(const FlatParameter&)>;
  std::vector<std::vector<View>> NewShards(MemoryKind kind, const std::vector<FormOf>& forms);
  // Contents undefined. kPersistent: for results of forward that the host reads, such as logits;
  // kUpdate: for updates alone.
  View NewBuffer(int64_t elements, DType dtype, MemoryUse use = MemoryKind::kActivations,
                 Phase phase = Phase::kPersistent);
  // Enqueues initial values of this rank's elements, its rows of tables, and the buffers, but for a
  // base (FlatParameter::of_base). Calls `fill` on threads of the compute stream. Padding: zero.
  void Initialize(const FillParameter& fill, const FillBuffer& fill_buffer = nullptr,
                  const FillRows& fill_rows = nullptr);
  // The same for a base. Blocks. Returns its hash over all ranks (fsdp/records.h); 0: it has none.
  uint64_t InitializeBase(const FillParameter& fill, const RecordSource& coded,
                          const ShareBytes& share);
  // Before a step: enqueues compute copies of masters that were written in another way.
  void MastersWritten();
  // Enqueues the state that the loss scaler, if in use, goes on from.
  void ResumeLossScaler(const LossScalerState& state);
  using Step = ExecutorStep;
  // Enqueues a whole step. First blocks until the step before the last is done, then in Result().
  void Run(const Step& step);
  int64_t steps() const { return steps_; }  // Enqueued so far.
  // Scalars of step `index`, from 0, one of the last two. Blocks until done; throws its error.
  StepScalars Result(int64_t index);
  StepAccount Account(int64_t index);  // The account of such a step.
  TrafficBytes Given(int64_t index) const { return traffic_[index % 2].Read(); }  // Its, so far.
  void Synchronize();  // Blocks until everything enqueued is done.
  // The operations that the streams are in, or failed in: "step 12, backward of unit 5
  // (transformer.h.4), op reduce_scatter", several joined by "; ". Streams that wait for others are
  // left out if any stream does not wait. Empty: all are idle, or the device cannot tell.
  std::string Where() const;
  void Enter(int segment, Pass pass) override;
  void Leave(int segment, Pass pass) override;
  bool HasBackward(int segment) const override;
  BatchRanks batch_ranks() const override;
  void SumOverRanks(const View& values) override;

 private:
  // Writes elements [at, at + host.NumElements()) of this rank's shard to `host`, host memory.
  void FillShard(ThreadPool& pool, int flat, int64_t at, const View& host,
                 const FillParameter& fill) const;
  void InitializeMaster(int flat, const FillParameter& fill);
  uint64_t InitializeRecords(int flat, const RecordSource& source, const ShareBytes& share);
  View NewShard(int flat, MemoryKind kind, const ShardForm& form);
  bool scales_loss() const { return memory_.scaler.data != nullptr; }
  CachingBuffers* caching() const { return allocator_.caching(); }
  View scalar(int index) const { return memory_.scalars.Slice(index, 1); }
  void AdvanceToRun();
  const Action& CurrentRun(int segment, Pass pass, const char* what) const;
  void WaitFor(const Action& action);
  Stream& stream(StreamId id) { return *streams_[static_cast<int>(id)]; }
  void JoinOthers();  // The compute stream waits for offload streams.
  void HoldOthers();  // All other streams wait for the compute stream's present work.
  // Between steps: the part of the shard, or the memory that host() reads the part into.
  PlacedView InMemory(const ShardPart& part, const PlacedView& shard);
  void Signal(size_t index);
  void Execute(const Action& action);
  void WriteInputs();
  void MoveBetweenSteps(int flat, const PlacedView& from, const PlacedView& to);
  void Bind(int unit, bool value, bool gradient);
  void BindShard(int flat);  // Where nothing is gathered: binds what the model computes with.
  // Where a flat parameter's part of a use lies. An evaluation that was given weights uses those.
  PlacedView At(const Use& use, int flat) const;
  // The same for one part; from a whole value, this rank's shard or part.
  PlacedView At(const Use& use, const ShardPart& part, ShardExtent extent) const;
  ShardExtent ExtentOf(const Use& use, int flat) const;
  // The part of the flat parameter that a use concerns; empty where it concerns another one's.
  std::optional<ShardPart> StretchOf(const Use& use, int flat) const;
  std::span<const int> FlatsOf(const Action& action) const;
  void MoveTo(StreamId stream, const PlacedView& from, const PlacedView& to);

  // Each function enqueues one kind of action: executor_actions.cc, executor_reduce.cc.
  void Begin(Stream& stream);
  void Load(const Action& action);
  void Move(const Action& action);
  void MoveSpilled(const Action& action);
  void MoveActivations(const Action& action);
  void Gather(const Action& action);
  void FillAll(const Action& action, float value);
  void Reduce(const Action& action);
  void ReduceInHops(StreamId stream, int flat, PlacedView value, const PlacedView& shard);
  void AllReduce(const Action& action, Resource wire, Scratch scratch);  // In place.
  void AllReduce(const Action& action, const View& data, DType dtype, Scratch scratch);
  void ExchangeSums(const Action& action, int flat, const PlacedView& shard);
  void SumSquares(const Action& action);
  void ReduceScalars(const Action& action);
  void Clip(Stream& stream);
  std::optional<ShardUpdate> UpdateOf(const Action& action, int flat) const;  // Without `copy`.
  void Update(const Action& action);
  void RunMatrices(const Action& action, MatrixAction matrices);
  void RunTables(const Action& action);
  void PrepareTables();  // Blocks until all ranks agree on the step's number of rounds.
  Device& device_;
  PhasedAllocator& allocator_;
  Model& model_;
  const ExecutorOptions options_;
  const MeshCommunicators& communicators_;
  const Layout layout_;
  const int shard_rank_;
  Schedule schedules_[2];
  Traffic traffic_[2];  // By steps_ % 2.
  ExecutorMemory memory_;
  Moves moves_;
  std::vector<std::vector<Parameter*>> parameters_;  // By flat parameter, as the layout's.
  std::unique_ptr<TableExchange> tables_;
  std::vector<EventPtr> copied_;       // By unit. Null: no copy, or the update waits already.
  bool held_ = false, joined_ = true;  // One is not null; compute() joined the offload streams.
  bool compute_shards_hold_others_ = false;  // The masters' must be made again.
  // The step that is being enqueued.
  const Step* step_ = nullptr;
  Tape* tape_ = nullptr;  // The micro-batch's.
  const Schedule* running_ = nullptr;
  size_t cursor_ = 0, summed_ = 0;                   // summed_: kSumBatch of the run so far.
  std::vector<EventPtr> events_, events_before_;     // By action: of this step, and of the last.
  bool trained_ = false, follows_training_ = false;  // The last step trains; so does this one.
  int64_t steps_ = 0;
  EventPtr ends_[2];  // By steps_ % 2, like the next two.
  StepClock clocks_[2];
  std::optional<CachingStatistics> peaks_[2];
  StepClock::Part work_ = &StepTimes::forward;  // The part of the last action that was work.
  // By StreamId; null: not used. Last: their work reads the above.
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_H_
