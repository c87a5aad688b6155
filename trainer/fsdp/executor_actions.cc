// What each action of a schedule enqueues.
// Tests: tests/trainer/fsdp/executor_test.cc
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/fake_collectives.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/loss_scaler.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/runtime/spill_memory.h"

namespace fsdp {
namespace {

// Between a device and a disk, by way of pinned memory: a piece after the other on one stream.
void ToDisk(Stream& stream, SpillMemory* disk, const View& staging, const ConstView& from,
            const View& to) {
  const int64_t n = from.NumElements(), most = staging.bytes() / SizeOf(from.dtype);
  for (int64_t at = 0; at < n; at += most) {
    const int64_t count = std::min(most, n - at);
    const View piece(staging.data, from.dtype, Shape{count});
    Copy(stream, from.Slice(at, count), piece);
    WriteSpilled(stream, disk, piece, to.Slice(at, count));
  }
}

void FromDisk(Stream& stream, SpillMemory* disk, const View& staging, const ConstView& from,
              const View& to) {
  const int64_t n = from.NumElements(), most = staging.bytes() / SizeOf(from.dtype);
  for (int64_t at = 0; at < n; at += most) {
    const int64_t count = std::min(most, n - at);
    const View piece(staging.data, from.dtype, Shape{count});
    ReadSpilled(stream, disk, from.Slice(at, count), piece);
    Copy(stream, piece, to.Slice(at, count));
  }
}

}  // namespace

void Executor::GatherShard(Stream& stream, int flat, bool fetched) {
  const View &shard = ShardInUse(flat), &value = flats_[flat].value;
  if (!sharded()) {
    if (shard.dtype != value.dtype) Cast(stream, shard, value);
    return;
  }
  ConstView part = shard;
  const int64_t size = shard.NumElements();
  const View own = value.Slice(shard_rank_ * size, size);
  if (fetched) {
    part = own;
  } else if (shard.dtype != value.dtype) {  // Cast where it is gathered to.
    Cast(stream, shard, own);
    part = own;
  }
  if (options_.fake_all_gather) return FakeAllGather(stream, part, value);
  communicators_.Over(Group::kGather)->AllGather(stream, part, value);
}

std::vector<View> Executor::GradientShards(const Action& action) const {
  std::vector<View> shards;
  Carver slot(action.shard_slot >= 0 ? memory_.shard_slots[action.shard_slot]
                                     : memory_.units[action.unit].shard);
  for (const int f : layout_.TrainableFlatParameters(action.unit)) {
    if (PlaceOf(f) == MemoryPlace::kDevice) {
      shards.push_back(memory_.gradients[f]);
    } else if (sharded()) {
      shards.push_back(slot.Take(layout_.flat_parameters[f].shard_size, DType::kFloat32));
    } else {
      shards.push_back(flats_[f].gradient);
    }
  }
  return shards;
}

std::vector<View> Executor::ReturningShards(const Action& action) const {
  std::vector<View> shards;
  Carver slot(action.update_slot >= 0 ? memory_.update_slots[action.update_slot] : View());
  for (const int f : layout_.TrainableFlatParameters(action.unit)) {
    const FlatParameter& flat = layout_.flat_parameters[f];
    const bool copied = action.update_slot >= 0 && flat.dtypes.compute != flat.dtypes.master;
    shards.push_back(copied ? slot.Take(flat.shard_size, flat.dtypes.compute) : memory_.masters[f]);
  }
  return shards;
}

void Executor::AllReduce(StreamId id, const View& data, DType dtype, const View& planned) {
  Stream& stream = this->stream(id);
  const auto sum = [&](const View& sent) {
    if (options_.fake_reduce) return FakeAllReduce(stream, mesh().replicate_size(), sent);
    communicators_.Over(Group::kReplicate)->AllReduce(stream, sent);
  };
  // A sum that is rounded to fp16 is divided before (loss_scale.h), as fp32 where there is one. It
  // is multiplied behind where `data` is fp32; in fp16 it stays divided: ExecutorMemory::divided.
  const bool stays = data.dtype == DType::kFloat16, travels = dtype == DType::kFloat16;
  const auto scale = [&](bool here, float factor, const View& x) {
    if (here && memory_.divisor > 1) Scale(stream, factor, x);
  };
  const float part = 1 / memory_.divisor;
  if (data.dtype == dtype) {
    scale(stays, part, data);
    return sum(data);
  }
  const ActionBytes wire(memory_.caching, planned, data.NumElements() * SizeOf(dtype), id);
  const View sent = Carver(wire.view()).Take(data.NumElements(), dtype);
  scale(travels, part, data);
  Cast(stream, data, sent);
  scale(stays, part, sent);
  sum(sent);
  Cast(stream, sent, data);
  scale(travels, memory_.divisor, data);
}

View Executor::CoefficientOf(int flat) const {
  const View& on_host = memory_.host_coefficient;
  return PlaceOf(flat) == MemoryPlace::kDevice
             ? scalar(memory_.divided[flat] ? kDividedCoefficient : kCoefficient)
             : on_host.Slice(memory_.divided[flat] ? 1 : 0, 1);
}

void Executor::BindGradients(const Action& action) {
  Carver slot(memory_.GradientAt(action, cursor_));
  for (const int f : layout_.TrainableFlatParameters(action.unit)) {
    const FlatParameter& flat = layout_.flat_parameters[f];
    if (!sharded() && PlaceOf(f) == MemoryPlace::kDevice) continue;
    flats_[f].gradient = slot.Take(flat.size, flat.dtypes.grad);
  }
}

void Executor::ReduceUnit(const Action& action, std::span<const int> flats) {
  Stream& stream = this->stream(action.stream);
  if (caching() && sharded() && IsOnHost(action.unit) && !action.staged) {
    memory_.units[action.unit].shard =
        caching()->Take(LargestGradientShards(layout_, {action.unit}), action.stream);
  }
  if (caching() && action.staged) {
    int64_t bytes = 0;
    for (const int f : flats) bytes += memory_.gradients[f].bytes();
    memory_.staging = caching()->Take(bytes, action.stream);
  }
  Carver staging(memory_.staging);
  const std::vector<View> shards = GradientShards(action);
  for (size_t i = 0; i < shards.size(); ++i) {
    const int f = flats[i];
    const FlatParameter& flat = layout_.flat_parameters[f];
    const DType reduce = flat.dtypes.reduce;
    const View& gradient = flats_[f].gradient;
    if (!sharded()) {
      AllReduce(action.stream, gradient, reduce, memory_.wire);
      continue;
    }
    const bool cast = reduce != gradient.dtype;
    const ActionBytes wire(memory_.caching, memory_.wire, cast ? flat.size * SizeOf(reduce) : 0,
                           action.stream);
    const View full = cast ? Carver(wire.view()).Take(flat.size, reduce) : gradient;
    if (cast) Cast(stream, gradient, full);
    const View shard = action.staged ? staging.Take(flat.shard_size, DType::kFloat32) : shards[i];
    if (options_.fake_reduce) {
      FakeReduceScatter(stream, full, shard_rank_, shard);
    } else {
      communicators_.Over(Group::kReduce)->ReduceScatter(stream, full, shard);
    }
  }
}

void Executor::UpdateSpilled(const Action& action) {
  const ShardPart& part = spilled().Part(action.unit, action.part);
  const int f = part.flat;
  const auto in_memory = [this, slot = action.spill_slot, part](const View& shard) {
    return spilled().In(slot, part, shard);
  };
  View copy = spilled().CopyIn(action.spill_slot, part);
  const ShardMemory& place = memory_.places[f];
  if (place.copy != MemoryPlace::kDevice && !place.shared) {
    copy = memory_.compute_shards[f].Slice(part.begin, part.count);
  }
  step_->optimize(
      stream(action.stream),
      {f, in_memory(memory_.masters[f]), in_memory(memory_.gradients[f]), CoefficientOf(f), copy,
       static_cast<int>(part.begin / options_.spill_part), in_memory});
}

void Executor::Execute(const Action& action) {
  Stream& stream = this->stream(action.stream);
  const int u = action.unit;
  if (u >= 0 && layout_.GatheredBytes(u) == 0) return;  // A root without parameters of its own.
  std::span<const int> trainable;                       // Whose gradients it is about.
  if (u >= 0) trainable = layout_.TrainableFlatParameters(u);
  switch (action.kind) {
    case ActionKind::kHostWait:  // Waits are all that it is.
    case ActionKind::kRun:
      break;
    case ActionKind::kBegin:
      Fill(stream, 0, memory_.scalars);
      Copy(stream, memory_.staged_inputs[steps_ % 2], memory_.inputs);
      UnpackStepInputs(stream, memory_.inputs, scalar(kMeanScale), scalar(kStop), scalar(kSave));
      if (scales_loss()) Copy(stream, memory_.scaler.Slice(0, 1), scalar(kLossScale));
      if (memory_.divisor > 1) {
        Copy(stream, scalar(kLossScale), scalar(kDividedLossScale));
        Scale(stream, 1 / memory_.divisor, scalar(kDividedLossScale));
      }
      if (step_->mode == Mode::kTrain) buffers().Begin(stream);
      break;
    case ActionKind::kLoad: {
      const ExecutorMemory::StagedBatch& batch = memory_.batches[action.slot];
      Operation operation{"load", {}, {batch.host_bytes}, {}};
      operation.costs = {Cost{.bytes_written = static_cast<double>(batch.host_bytes.bytes())}};
      const auto load = [load = step_->load, m = action.micro_batch](ThreadPool&, const Batch& host,
                                                                     const View& bytes) {
        try {
          load(m, host);
        } catch (...) {  // What a GPU runs behind the failure stays in bounds.
          std::memset(bytes.data, 0, bytes.bytes());
          throw;
        }
      };
      operation.kernels.host = OnCpu(load, batch.host, batch.host_bytes);
      stream.Enqueue(std::move(operation));
      Copy(stream, batch.host_bytes, batch.device_bytes);
      break;
    }
    case ActionKind::kFetch: {
      if (caching() && action.part <= 0) {
        memory_.units[u].value = caching()->Take(layout_.GatheredBytes(u), action.stream);
      }
      Carver slot(memory_.GatheredAt(action, step_->mode, cursor_));
      const int own = sharded() ? shard_rank_ : 0;
      const auto part = [&](int f, const ShardPart& p) {
        FetchShard(
            stream, f, spilled().In(action.spill_slot, p, ShardInUse(f)),
            flats_[f].value.Slice(own * layout_.flat_parameters[f].shard_size + p.begin, p.count));
      };
      for (const int f : layout_.units[u].flat_parameters) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        flats_[f].value = slot.Take(flat.size, flat.dtypes.compute);
        if (action.part < 0 || (action.part == 0 && flat.frozen)) part(f, {f, 0, flat.shard_size});
      }
      if (action.part >= 0)
        part(spilled().Part(u, action.part).flat, spilled().Part(u, action.part));
      break;
    }
    case ActionKind::kGather: {
      const bool fetched = IsFetched(u) && !action.secondary;
      if (caching() && sharded() && !fetched) {
        memory_.units[u].value = caching()->Take(layout_.GatheredBytes(u), action.stream);
      }
      Carver slot(memory_.GatheredAt(action, step_->mode, cursor_));
      for (const int f : layout_.units[u].flat_parameters) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        if (sharded()) flats_[f].value = slot.Take(flat.size, flat.dtypes.compute);
        if (action.secondary && options_.fake_all_gather) {
          FakeAllGather(stream, memory_.secondary[f], flats_[f].value);
        } else if (action.secondary) {
          communicators_.Over(Group::kSecondary)
              ->AllGather(stream, memory_.secondary[f], flats_[f].value);
        } else {
          GatherShard(stream, f, fetched);
        }
      }
      break;
    }
    case ActionKind::kLeaveActivations: {
      const View& staging = memory_.leaving;
      const bool spills = staging.data != nullptr;
      tape_->CopyToHost(action.segment, stream, spills ? MemoryPlace::kDisk : MemoryPlace::kPinned,
                        [&](Stream& leave, ConstView from, View to) {
                          spills ? ToDisk(leave, spill(), staging, from, to)
                                 : Copy(leave, from, to);
                        });
      break;
    }
    case ActionKind::kDropActivations:
      tape_->DropFromDevice(action.segment);
      break;
    case ActionKind::kFetchActivations: {
      const View& staging = memory_.coming;
      tape_->CopyToDevice(action.segment, stream, [&](Stream& fetch, ConstView from, View to) {
        staging.data != nullptr ? FromDisk(fetch, spill(), staging, from, to)
                                : Copy(fetch, from, to);
      });
      break;
    }
    case ActionKind::kKeep:
      for (const int f : layout_.units[u].flat_parameters) {
        const int64_t size = memory_.secondary[f].NumElements();
        const int part = shard_rank_ % mesh().secondary_size();
        Copy(stream, flats_[f].value.Slice(part * size, size), memory_.secondary[f]);
      }
      break;
    case ActionKind::kFree:
      for (const int flat : layout_.units[u].flat_parameters) {
        const View value = std::exchange(flats_[flat].value, View());
        if (options_.poison) Fill(stream, std::numeric_limits<float>::quiet_NaN(), value);
      }
      if (caching()) caching()->Release(memory_.units[u].value, {StreamId::kCompute});
      break;
    case ActionKind::kClear:
      if (caching() && (sharded() || IsOnHost(u))) {
        memory_.units[u].gradient = caching()->Take(layout_.GradientBytes(u), action.stream);
      }
      BindGradients(action);
      for (const int f : trainable) Fill(stream, 0, flats_[f].gradient);
      break;
    case ActionKind::kFetchGradient: {
      if (caching() && sharded()) {
        memory_.units[u].shard =
            caching()->Take(LargestGradientShards(layout_, {u}), action.stream);
      } else if (caching()) {
        memory_.units[u].gradient = caching()->Take(layout_.GradientBytes(u), action.stream);
      }
      if (!sharded()) BindGradients(action);
      const std::vector<View> shards = GradientShards(action);
      for (size_t i = 0; i < shards.size(); ++i) {
        Copy(stream, memory_.gradients[trainable[i]], shards[i]);
      }
      break;
    }
    case ActionKind::kReduce:
      ReduceUnit(action, trainable);
      if (caching() && sharded()) caching()->Release(memory_.units[u].gradient, {action.stream});
      break;
    case ActionKind::kAccumulate: {
      Carver staging(memory_.staging);
      for (const View& shard : GradientShards(action)) {
        Accumulate(stream, staging.Take(shard.NumElements(), DType::kFloat32), shard);
      }
      if (caching()) caching()->Release(memory_.staging);
      break;
    }
    case ActionKind::kAllReduce: {
      const std::vector<View> shards = GradientShards(action);
      for (size_t i = 0; i < shards.size(); ++i) {
        AllReduce(action.stream, shards[i], layout_.flat_parameters[trainable[i]].dtypes.reduce,
                  memory_.replica_wire);
      }
      break;
    }
    case ActionKind::kSumSquares: {
      const std::vector<View> shards = GradientShards(action);
      for (size_t i = 0; i < shards.size(); ++i) {
        if (scales_loss()) {
          const bool divided = memory_.divided[trainable[i]];
          UnscaledSumOfSquares(stream, shards[i],
                               divided ? scalar(kDividedLossScale) : memory_.scaler.Slice(0, 1),
                               scalar(kSumSquares), scalar(kFound), memory_.squares);
        } else {
          SumOfSquares(stream, shards[i], scalar(kSumSquares), memory_.squares);
        }
      }
      break;
    }
    case ActionKind::kLeave: {
      const std::vector<View> shards = GradientShards(action);
      for (size_t i = 0; i < shards.size(); ++i) {
        Copy(stream, shards[i], memory_.gradients[trainable[i]]);
      }
      if (caching()) {
        caching()->Release(sharded() ? memory_.units[u].shard : memory_.units[u].gradient,
                           {action.stream});
      }
      break;
    }
    case ActionKind::kReduceScalars: {
      // Replicas hold the same squares, which count once, and samples of their own.
      if (communicators_.mesh().coordinate().replicate > 0 && !step_->second_sum) {
        Fill(stream, 0, scalar(kSumSquares));
      }
      const View scalars = memory_.scalars.Slice(0, scales_loss() ? kFound + 1 : kFound);
      communicators_.Over(Group::kWorld)
          ->AllReduce(stream,
                      step_->mode == Mode::kTrain ? buffers().WithStatistics(scalars) : scalars);
      break;
    }
    case ActionKind::kClip: {
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
      buffers().Take(stream, scalar(kCoefficient), mesh().world_size());
      if (step_->begin_update) {
        step_->begin_update(stream, memory_.inputs, scalar(kCoefficient));
      }
      const View& on_host = memory_.host_coefficient;
      if (on_host.data != nullptr) {
        Copy(stream, memory_.scalars.Slice(kCoefficient, on_host.NumElements()), on_host);
      }
      break;
    }
    case ActionKind::kOptimizer: {
      stream.Wait(std::exchange(copied_[u], nullptr));
      const bool on_host = IsOnHost(u);
      if (action.part >= 0) {
        UpdateSpilled(action);
        break;
      }
      const std::vector<View> returning = ReturningShards(action);
      for (size_t i = 0; i < returning.size(); ++i) {
        const int f = trainable[i];
        const View& master = memory_.masters[f];
        View copy = memory_.compute_shards[f];
        if (on_host && memory_.places[f].copy == MemoryPlace::kDevice) {
          copy = returning[i];
        } else if (cast_in_gather()) {
          copy = View();
        }
        step_->optimize(stream, {f, master, memory_.gradients[f], CoefficientOf(f),
                                 copy.data == master.data ? View() : copy});
      }
      break;
    }
    case ActionKind::kReturn: {
      if (action.part >= 0) {
        const ShardPart& part = spilled().Part(u, action.part);
        const View copy = spilled().CopyIn(action.spill_slot, part);
        FetchShard(
            stream, part.flat,
            copy.data ? copy : spilled().In(action.spill_slot, part, memory_.masters[part.flat]),
            memory_.compute_shards[part.flat].Slice(part.begin, part.count));
        break;
      }
      const std::vector<View> returning = ReturningShards(action);
      for (size_t i = 0; i < returning.size(); ++i) {
        FetchShard(stream, trainable[i], returning[i], memory_.compute_shards[trainable[i]]);
      }
      break;
    }
    case ActionKind::kReadSpilled: {
      const ShardPart& part = spilled().Part(u, action.part);
      for (const View& shard : spilled().Of(part.flat)) {
        if (step_->weights && (*step_->weights)[part.flat].data != shard.data) continue;
        spilled().Read(stream, action.spill_slot, part, shard);
      }
      break;
    }
    case ActionKind::kWriteSpilled: {
      const ShardPart& part = spilled().Part(u, action.part);
      for (const View& shard : spilled().Of(part.flat)) {
        spilled().Write(stream, action.spill_slot, part, shard);
      }
      break;
    }
    case ActionKind::kEnd:
      Copy(stream, memory_.scalars, memory_.reports[steps_ % 2]);
      break;
  }
}

}  // namespace fsdp
