// What each action of a schedule enqueues.
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "trainer/fsdp/executor.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/loss_scaler.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {

void Executor::GatherShard(Stream& stream, int flat) {
  const View &shard = ShardInUse(flat), &value = flats_[flat].value;
  if (!sharded()) {
    if (shard.dtype != value.dtype) Cast(stream, shard, value);
    return;
  }
  ConstView part = shard;
  if (shard.dtype != value.dtype) {  // Cast where it is gathered to.
    const int64_t size = shard.NumElements();
    const View own = value.Slice(shard_rank_ * size, size);
    Cast(stream, shard, own);
    part = own;
  }
  communicators_.Over(Group::kGather)->AllGather(stream, part, value);
}

void Executor::AllReduce(Stream& stream, const View& data, DType dtype, const View& wire) {
  Communicator& replicas = *communicators_.Over(Group::kReplicate);
  if (data.dtype == dtype) return replicas.AllReduce(stream, data);
  const View sent = Carver(wire).Take(data.NumElements(), dtype);
  Cast(stream, data, sent);
  replicas.AllReduce(stream, sent);
  Cast(stream, sent, data);
}

void Executor::Execute(const Action& action) {
  Stream& stream = StreamOf(action);
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
      break;
    case ActionKind::kLoad: {
      const ExecutorMemory::StagedBatch& batch = memory_.batches[action.slot];
      Operation operation{"load", {}, {batch.host_bytes}, {}};
      operation.costs = {Cost{.bytes_written = static_cast<double>(batch.host_bytes.bytes())}};
      const auto load = [load = step_->load, m = action.micro_batch](ThreadPool&, const Batch& host,
                                                                     const View& bytes) {
        try {
          load(m, host);
          OrderTokens(host);
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
    case ActionKind::kGather: {
      Carver slot(action.slot >= 0 ? memory_.gather_slots[action.slot] : memory_.units[u].value);
      for (const int f : layout_.units[u].flat_parameters) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        if (sharded()) flats_[f].value = slot.Take(flat.size, flat.dtypes.compute);
        if (action.secondary) {
          communicators_.Over(Group::kSecondary)
              ->AllGather(stream, memory_.secondary[f], flats_[f].value);
        } else {
          GatherShard(stream, f);
        }
      }
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
      break;
    case ActionKind::kClear: {
      Carver slot(action.slot >= 0 ? memory_.gradient_slots[action.slot]
                                   : memory_.units[u].gradient);
      for (const int f : trainable) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        if (sharded()) flats_[f].gradient = slot.Take(flat.size, flat.dtypes.grad);
        Fill(stream, 0, flats_[f].gradient);
      }
      break;
    }
    case ActionKind::kReduce: {
      Carver staging(memory_.staging);
      for (const int f : trainable) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        const View& gradient = flats_[f].gradient;
        if (!sharded()) {
          AllReduce(stream, gradient, flat.dtypes.reduce, memory_.wire);
          continue;
        }
        View full = gradient;
        if (flat.dtypes.reduce != gradient.dtype) {
          full = Carver(memory_.wire).Take(flat.size, flat.dtypes.reduce);
          Cast(stream, gradient, full);
        }
        const View shard =
            action.staged ? staging.Take(flat.shard_size, DType::kFloat32) : memory_.gradients[f];
        communicators_.Over(Group::kReduce)->ReduceScatter(stream, full, shard);
      }
      break;
    }
    case ActionKind::kAccumulate: {
      Carver staging(memory_.staging);
      for (const int f : trainable) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        Accumulate(stream, staging.Take(flat.shard_size, DType::kFloat32), memory_.gradients[f]);
      }
      break;
    }
    case ActionKind::kAllReduce:
      for (const int f : trainable) {
        AllReduce(stream, memory_.gradients[f], layout_.flat_parameters[f].dtypes.reduce,
                  memory_.replica_wire);
      }
      break;
    case ActionKind::kSumSquares:
      for (const int f : trainable) {
        if (scales_loss()) {
          UnscaledSumOfSquares(stream, memory_.gradients[f], memory_.scaler.Slice(0, 1),
                               scalar(kSumSquares), scalar(kFound), memory_.squares);
        } else {
          SumOfSquares(stream, memory_.gradients[f], scalar(kSumSquares), memory_.squares);
        }
      }
      break;
    case ActionKind::kReduceScalars:
      // Replicas hold the same squares: they count once.
      if (communicators_.mesh().coordinate().replicate > 0) {
        Fill(stream, 0, scalar(kSumSquares));
      }
      communicators_.Over(Group::kWorld)
          ->AllReduce(stream, memory_.scalars.Slice(0, scales_loss() ? kFound + 1 : kFound));
      break;
    case ActionKind::kClip: {
      std::optional<LossScaling> scaling;
      if (scales_loss()) scaling = {memory_.scaler.Slice(0, 1), scalar(kFound)};
      ClipCoefficient(stream, scalar(kLoss), scalar(kSumSquares), scalar(kMeanScale), scaling,
                      options_.max_norm, scalar(kGradNorm), scalar(kCoefficient));
      if (scales_loss()) {
        UpdateLossScaler(stream, options_.mixed_precision.scaler, scalar(kFound), memory_.scaler);
        Copy(stream, memory_.scaler, memory_.scalars.Slice(kScaler, kLossScalerFloats));
      }
      if (step_->begin_update) {
        step_->begin_update(stream, memory_.inputs, scalar(kCoefficient));
      }
      break;
    }
    case ActionKind::kOptimizer:
      WaitUntilCopied();
      for (const int f : trainable) {
        const View &master = memory_.masters[f], &copy = memory_.compute_shards[f];
        step_->optimize(stream, {f, master, memory_.gradients[f], scalar(kCoefficient),
                                 copy.data == master.data || cast_in_gather() ? View() : copy});
      }
      break;
    case ActionKind::kEnd:
      Copy(stream, memory_.scalars, memory_.reports[steps_ % 2]);
      break;
  }
}

}  // namespace fsdp
