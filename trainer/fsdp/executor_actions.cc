// The work that each action of a schedule enqueues.
// Tests: tests/trainer/fsdp/executor_test.cc
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "trainer/autograd/tape.h"
#include "trainer/core/check.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/fake_collectives.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/loss_scaler.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

void Executor::Execute(const Action& action) {
  if (const std::optional<MatrixAction> matrices = MatrixAction::Of(action)) {
    return RunMatrices(action, *matrices);
  }
  switch (action.kind) {
    case ActionKind::kHostWait:  // Waits are all that it is.
    case ActionKind::kRun:
      return;
    case ActionKind::kBegin:
      return Begin(stream(action.stream));
    case ActionKind::kLoad:
      return Load(action);
    case ActionKind::kMove:
      return action.segment < 0 ? Move(action) : MoveActivations(action);
    case ActionKind::kGather:
      return Gather(action);
    case ActionKind::kFree:  // Tests poison it.
    case ActionKind::kClear:
      return FillAll(
          action, action.kind == ActionKind::kFree ? std::numeric_limits<float>::quiet_NaN() : 0);
    case ActionKind::kReduce:
      return Reduce(action);
    case ActionKind::kAccumulate:
      for (const int f : FlatsOf(action)) {
        Accumulate(stream(action.stream), At(action.reads.front(), f).view,
                   At(action.writes.front(), f).view);
      }
      return;
    case ActionKind::kAllReduce:
      return AllReduce(action, Resource::kReplicaWire, Scratch::kReplicaWire);
    case ActionKind::kSumSquares:
      return SumSquares(action);
    case ActionKind::kReduceScalars:
      return ReduceScalars(action);
    case ActionKind::kClip:
      return Clip(stream(action.stream));
    case ActionKind::kOptimizer:
      return Update(action);
    case ActionKind::kDrop:
      return tape_->DropFromDevice(action.segment);
    case ActionKind::kEnd:
      return Copy(stream(action.stream), buffers().WithTallies(memory_.scalars),
                  memory_.reports[steps_ % 2]);
    case ActionKind::kSumBatch:
      FSDP_CHECK(false) << "is done in the run before it: SumOverRanks()";
      return;
    default:  // kTableTurn and what follows.
      return RunTables(action);
  }
}

void Executor::Begin(Stream& stream) {
  Fill(stream, 0, memory_.scalars);
  Copy(stream, memory_.staged_inputs[steps_ % 2], memory_.inputs);
  UnpackStepInputs(stream, memory_.inputs, scalar(kMeanScale), scalar(kSave));
  if (scales_loss()) Copy(stream, memory_.scaler.Slice(0, 1), scalar(kLossScale));
  if (memory_.divisor > 1) {
    Copy(stream, scalar(kLossScale), scalar(kDividedLossScale));
    Scale(stream, 1 / memory_.divisor, scalar(kDividedLossScale));
  }
  if (step_->mode == Mode::kTrain) buffers().Begin(stream);
}

void Executor::Load(const Action& action) {
  Stream& stream = this->stream(action.stream);
  const ExecutorMemory::StagedBatch& batch = memory_.batches[action.slot()];
  if (tables_ && running_->options.micro_batches == 1) {  // Its ids have been read with all else.
    return Copy(stream, tables_->routed_batch(), batch.device_bytes);
  }
  Operation operation{"load", {}, {batch.host_bytes}, {}};
  operation.costs = {Cost{.bytes_written = static_cast<double>(batch.host_bytes.bytes())}};
  const auto load = [load = step_->load, m = action.micro_batch](ThreadPool&, const Batch& host,
                                                                 const View& bytes) {
    try {
      load(m, host);
    } catch (...) {  // Work that a GPU runs behind the failure stays in bounds.
      std::memset(bytes.data, 0, bytes.bytes());
      throw;
    }
  };
  operation.kernels.host = OnCpu(load, batch.host, batch.host_bytes);
  stream.Enqueue(std::move(operation));
  Copy(stream, batch.host_bytes, batch.device_bytes);
}

PlacedView Executor::At(const Use& use, int flat) const {
  const bool computed_with = use.what == Resource::kMaster || use.what == Resource::kConstant ||
                             use.what == Resource::kComputeShard;
  if (!computed_with || step_->weights == nullptr || layout_.flat_parameters[flat].frozen) {
    return memory_.At(use, flat);
  }
  return {(*step_->weights)[flat], memory_.storage.PlaceOf(Resource::kAverage, flat)};
}

ShardExtent Executor::ExtentOf(const Use& use, int flat) const {
  const bool slot = use.what == Resource::kSpillSlot || use.what == Resource::kSpillCopy;
  return slot ? ShardExtent::kShard : memory_.storage.At(use.what, flat).extent;
}

PlacedView Executor::At(const Use& use, const ShardPart& part, ShardExtent extent) const {
  if (use.what == Resource::kSpillCopy) {
    return {spilled().CopyIn(use.slot, part), MemoryPlace::kPinned};
  }
  if (use.what == Resource::kSpillSlot) {  // In an evaluation what is fetched.
    const bool train = step_->mode == Mode::kTrain;
    const Use thing{train ? Resource::kMaster : Resource::kComputeShard, use.of};
    return spilled().In(use.slot, part, At(thing, part.flat));
  }
  PlacedView found = At(use, part.flat);
  const bool whole = ExtentOf(use, part.flat) == ShardExtent::kWhole;
  if (extent == ShardExtent::kPart) {
    const int64_t size = layout_.flat_parameters[part.flat].size / mesh().secondary_size();
    const int64_t own = shard_rank_ % mesh().secondary_size() * size;
    found.view = found.view.Slice(whole ? own : 0, size);
  } else if (extent == ShardExtent::kShard) {
    const int64_t own = layout_.flat_parameters[part.flat].ShardBegin(shard_rank_);
    found.view = found.view.Slice((whole ? own : 0) + part.begin, part.count);
  }
  return found;
}

std::optional<ShardPart> Executor::StretchOf(const Use& use, int flat) const {
  const FlatParameter& layout = layout_.flat_parameters[flat];
  const ShardPart all{flat, 0, layout.shard_size};
  if (use.part < 0) return all;
  const ShardPart& part = spilled().Part(use.of, use.part);
  if (part.flat == flat) return part;
  // A frozen one is in no part, and comes with the first.
  return layout.frozen && use.part == 0 ? std::optional(all) : std::nullopt;
}

std::span<const int> Executor::FlatsOf(const Action& action) const {
  const bool frozen = action.kind == ActionKind::kGather || action.Find({Resource::kValue});
  if (frozen) return layout_.units[action.unit].flat_parameters;
  return layout_.TrainableFlatParameters(action.unit);
}

void Executor::MoveTo(StreamId id, const PlacedView& from, const PlacedView& to) {
  moves_({*memory_.units, id, spill()}, stream(id), from, to);
}

void Executor::MoveBetweenSteps(int flat, const PlacedView& from, const PlacedView& to) {
  for (const ShardPart& part : spilled().PartsOf(flat)) {
    const PlacedView there{to.view.Slice(part.begin, part.count), to.place, to.code};
    const bool on_host = there.place != MemoryPlace::kDevice;
    const PlacedView source = InMemory(part, from);
    moves_({*memory_.units, StreamId::kCompute, spill()}, on_host ? host() : compute(), source,
           there);
  }
}

void Executor::Move(const Action& action) {
  const Use &from = action.reads.front(), &to = action.writes.front();
  if (from.what == Resource::kSpilled || to.what == Resource::kSpilled) return MoveSpilled(action);
  for (const int f : FlatsOf(action)) {
    const std::optional<ShardPart> part = StretchOf(from, f);
    if (!part) continue;
    const ShardExtent extent = std::min(ExtentOf(from, f), ExtentOf(to, f));
    MoveTo(action.stream, At(from, *part, extent), At(to, *part, extent));
  }
}

void Executor::MoveSpilled(const Action& action) {
  const bool reads = action.reads.front().what == Resource::kSpilled;
  const Use& in_memory = reads ? action.writes.front() : action.reads.front();
  const ShardPart& part = spilled().Part(in_memory.of, in_memory.part);
  for (const View& shard : spilled().Of(part)) {
    if (step_->weights && (*step_->weights)[part.flat].data != shard.data) continue;
    const PlacedView disk{shard.Slice(part.begin, part.count), MemoryPlace::kDisk};
    const PlacedView slot = spilled().In(in_memory.slot, part, {shard, MemoryPlace::kDisk});
    MoveTo(action.stream, reads ? disk : slot, reads ? slot : disk);
  }
}

void Executor::MoveActivations(const Action& action) {
  const MemoryPlace host = options_.activation_offload == ActivationOffload::kSpill
                               ? MemoryPlace::kDisk
                               : MemoryPlace::kPinned;
  Stream& stream = this->stream(action.stream);
  const bool leaves = action.reads.front().what == Resource::kActivations;
  const auto move = [&](Stream&, const View& from, const View& to) {
    MoveTo(action.stream, {from, leaves ? MemoryPlace::kDevice : host},
           {to, leaves ? host : MemoryPlace::kDevice});
  };
  leaves ? tape_->CopyToHost(action.segment, stream, host, move)
         : tape_->CopyToDevice(action.segment, stream, move);
}

void Executor::Gather(const Action& action) {
  Stream& stream = this->stream(action.stream);
  const Use to{Resource::kValue, action.unit};
  const int ranks = mesh().SizeOf(action.group());
  for (const int f : FlatsOf(action)) {
    const PlacedView value = At(to, f);
    const int64_t size = value.view.NumElements() / ranks;
    PlacedView own = value;
    own.view = value.view.Slice(shard_rank_ % ranks * size, size);
    PlacedView part = action.reads.empty() ? own : At(action.reads.front(), f);
    // A shard that lies elsewhere, or in another form, is brought to its place first.
    if (!part.Is(value.place, {value.view.dtype, value.code})) {
      MoveTo(action.stream, part, own);
      part = own;
    }
    if (ranks == 1) continue;
    PlacedView sent = part, all = value;
    const StorageRow& wire =
        memory_.storage.At(action.secondary() ? Resource::kValue : Resource::kGatherWire, f);
    const bool travels_so = value.Is(wire.place, wire.form) || options_.fake_all_gather;
    const ScratchBytes bytes(*memory_.units, Scratch::kGatherWire, travels_so ? 0 : wire.bytes(),
                             action.stream);
    if (!travels_so) {
      const int64_t stride = wire.elements / ranks;
      const View packed(bytes.view().data, wire.form.dtype, Shape{wire.elements});
      all = {packed, wire.place, wire.form.code, &memory_.quantized[f].gather.all};
      sent = {packed.Slice(shard_rank_ * stride, stride), wire.place, wire.form.code,
              &memory_.quantized[f].gather.own};
      MoveTo(action.stream, part, sent);
    }
    if (options_.fake_all_gather) {
      FakeAllGather(stream, sent.view, all.view);
    } else {
      communicators_.Over(action.group())->AllGather(stream, sent.view, all.view);
    }
    if (!travels_so) MoveTo(action.stream, all, value);  // All ranks see this one's so, too.
  }
}

void Executor::FillAll(const Action& action, float value) {
  for (const Use& written : action.writes) {
    for (const int f : FlatsOf(action)) {
      View view = At(written, f).view;
      if (view.dtype == DType::kUInt8) {  // Records: their scales become NaN.
        view = View(view.data, DType::kFloat32, Shape{view.bytes() / SizeOf(DType::kFloat32)});
      }
      Fill(stream(action.stream), value, view);
    }
  }
}

void Executor::SumSquares(const Action& action) {
  Stream& stream = this->stream(action.stream);
  for (const int f : FlatsOf(action)) {
    const View shard = At(action.reads.front(), f).view;
    if (!scales_loss()) {
      fsdp::SumOfSquares(stream, shard, scalar(kSumSquares), memory_.squares);
      continue;
    }
    const View scale = memory_.divided[f] ? scalar(kDividedLossScale) : memory_.scaler.Slice(0, 1);
    UnscaledSumOfSquares(stream, shard, scale, scalar(kSumSquares), scalar(kFound),
                         memory_.squares);
  }
}

void Executor::ReduceScalars(const Action& action) {
  Stream& stream = this->stream(action.stream);
  // Replicas hold the same squares, which count once, and samples of their own.
  if (communicators_.mesh().coordinate().replicate > 0 && !step_->second_sum) {
    Fill(stream, 0, scalar(kSumSquares));
  }
  const View scalars = memory_.scalars.Slice(0, scales_loss() ? kFound + 1 : kFound);
  communicators_.Over(action.group())
      ->AllReduce(stream, step_->mode == Mode::kTrain ? buffers().WithSummed(scalars) : scalars);
}

void Executor::Clip(Stream& stream) {
  std::optional<LossScaling> scaling;
  if (scales_loss()) scaling = {memory_.scaler.Slice(0, 1), scalar(kFound)};
  ClipCoefficient(stream, scalar(kLoss), scalar(kSumSquares), scalar(kMeanScale), scaling,
                  options_.max_norm, scalar(kGradNorm), scalar(kCoefficient));
  if (memory_.divisor > 1) {
    Copy(stream, scalar(kCoefficient), scalar(kDividedCoefficient));
    Scale(stream, memory_.divisor, scalar(kDividedCoefficient));
  }
  if (scales_loss()) {
    UpdateLossScaler(stream, options_.mixed_precision.scaler, scalar(kFound), memory_.scaler);
    Copy(stream, memory_.scaler, memory_.scalars.Slice(kScaler, kLossScalerFloats));
  }
  buffers().Take(stream, scalar(kCoefficient), mesh().world_size(), options_.balance.bias_rate);
  if (step_->begin_update) step_->begin_update(stream, memory_.inputs, scalar(kCoefficient));
  const View& on_host = memory_.host_coefficient;
  if (on_host.data != nullptr) {
    Copy(stream, memory_.scalars.Slice(kCoefficient, on_host.NumElements()), on_host);
  }
}

void Executor::HoldUpdate(int unit, const EventPtr& copied) {
  copied_[unit] = copied;
  held_ = true;
}

std::optional<ShardUpdate> Executor::UpdateOf(const Action& action, int flat) const {
  const Use& written = action.writes.front();
  const std::optional<ShardPart> part = StretchOf(written, flat);
  if (!part) return std::nullopt;
  ShardUpdate update{
      .flat = flat,
      .master = At({Resource::kMaster, action.unit}, *part, ShardExtent::kShard).view,
      .gradient = At({Resource::kGradientShard, action.unit}, *part, ShardExtent::kShard).view,
      .coefficient = memory_.coefficients[flat]};
  if (written.part >= 0) {
    update.part = static_cast<int>(part->begin / options_.spill_part);
    update.begin = part->begin;
    update.in_memory = [this, slot = written.slot, part = *part](const View& shard) {
      return spilled().In(slot, part, shard);
    };
    update.master = At(written, *part, ShardExtent::kShard).view;
  }
  return update;
}

void Executor::Update(const Action& action) {
  Stream& stream = this->stream(action.stream);
  stream.Wait(std::exchange(copied_[action.unit], nullptr));
  for (const int f : FlatsOf(action)) {
    std::optional<ShardUpdate> update = UpdateOf(action, f);
    if (!update) continue;
    // The copy that is computed with, where that is not the master itself.
    if (action.writes.size() > 1) {
      const ShardPart part = *StretchOf(action.writes.front(), f);
      const View copy = At(action.writes.back(), part, ShardExtent::kShard).view;
      if (copy.data != update->master.data) update->copy = copy;
    }
    step_->optimize(stream, *update);
  }
}

std::optional<MatrixAction> MatrixAction::Of(const Action& action) {
  const Use* const slot =
      action.Find({Resource::kMatrixPieces, Resource::kMatrixOwned, Resource::kHostPieces});
  const bool moves =
      action.kind == ActionKind::kMove &&
      action.Find({Resource::kHostPieces, Resource::kHostSums, Resource::kHostSquares});
  if (!moves &&
      (action.kind < ActionKind::kMatrixPieces || action.kind > ActionKind::kUpdateReduce)) {
    return std::nullopt;
  }
  return MatrixAction{.kind = action.kind,
                      .unit = action.unit,
                      .slot = slot ? slot->slot : 0,
                      .to = moves ? action.writes.front().what : Resource()};
}

void Executor::RunMatrices(const Action& action, MatrixAction matrices) {
  Stream& stream = this->stream(action.stream);
  matrices.world = communicators_.Over(Group::kWorld);
  const bool pieces = action.kind == ActionKind::kMatrixPieces;
  if (pieces) stream.Wait(copied_[action.unit]);  // Momentum changes here; the rest in Update().
  if (pieces || action.kind == ActionKind::kFactorSums ||
      action.kind == ActionKind::kUpdateSquares) {
    for (const int f : FlatsOf(action)) {
      if (pieces && !layout_.flat_parameters[f].dtypes.whole) continue;
      if (const std::optional<ShardUpdate> update = UpdateOf(action, f)) {
        matrices.shards.push_back(*update);
      }
    }
  }
  step_->matrices(stream, matrices);
}

// Embedding tables.

void Executor::PrepareTables() {
  if (!tables_) return;
  const bool train = step_->mode == Mode::kTrain;
  if (!train || tables_->routed_step != step_->number) {
    Stream& data = stream(StreamId::kData);
    data.Wait(tables_->stream().Record());  // It reads the route that is there.
    tables_->Route(data, step_->load, running_->options.micro_batches);
    tables_->stream().Wait(data.Record());
    tables_->Agree(tables_->stream());
  }
  tables_->TakeRounds(steps_);
  tables_->routed_step = train && step_->load_next ? step_->number + 1 : 0;
}

void Executor::RunTables(const Action& action) {
  Stream& stream = this->stream(action.stream);
  switch (action.kind) {
    case ActionKind::kTableTurn:
      return tables_->Turn(stream);
    case ActionKind::kTableFetch:
      return tables_->Fetch(stream);
    case ActionKind::kTableRoute:
      return tables_->Route(stream, step_->load_next, running_->options.micro_batches);
    case ActionKind::kTableAgree:
      return tables_->Agree(stream);
    case ActionKind::kTableClear:
      return tables_->Clear(stream);
    case ActionKind::kTableCheck:
      return tables_->Check(
          stream, scales_loss() ? std::optional(memory_.scaler.Slice(0, 1)) : std::nullopt,
          scalar(scales_loss() ? kFound : kLoss), memory_.squares);
    case ActionKind::kTableSend:
      return tables_->Send(stream);
    default:
      FSDP_CHECK(action.kind == ActionKind::kTableUpdate) << ToString(action);
      stream.Wait(tables_->TakeCopied());
      tables_->Update(stream, [&](RowUpdate update) {
        update.coefficient = scalar(kCoefficient);
        update.mean_scale = scalar(kMeanScale);
        if (scales_loss()) update.loss_scale = scalar(kLossScale);
        step_->update_rows(stream, update);
      });
  }
}

}  // namespace fsdp
