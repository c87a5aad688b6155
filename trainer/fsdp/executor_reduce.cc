// The work that actions enqueue which sum over ranks.
// Tests: tests/trainer/engine/quantized_reduce_test.cc
#include "trainer/core/check.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/fake_collectives.h"
#include "trainer/fsdp/step_position.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"

namespace fsdp {

void Executor::Reduce(const Action& action) {
  if (action.reads.empty()) return AllReduce(action, Resource::kWire, Scratch::kWire);
  Stream& stream = this->stream(action.stream);
  for (const int f : FlatsOf(action)) {
    PlacedView full = At(action.reads.front(), f);
    const PlacedView sum = At(action.writes.front(), f);
    if (!memory_.quantized[f].hops.empty()) {
      ReduceInHops(action.stream, f, full, sum);
      continue;
    }
    const View& shard = sum.view;
    const StorageRow& wire = memory_.storage.At(Resource::kWire, f);
    const bool travels_so = full.Is(wire.place, wire.form);
    const ScratchBytes bytes(*memory_.units, Scratch::kWire, travels_so ? 0 : wire.bytes(),
                             action.stream);
    if (!travels_so) {
      const PlacedView sent{View(bytes.view().data, wire.form.dtype, full.view.shape), wire.place,
                            wire.form.code};
      MoveTo(action.stream, full, sent);
      full = sent;
    }
    if (options_.fake_reduce) {
      FakeReduceScatter(stream, full.view, shard_rank_, shard);
    } else {
      communicators_.Over(action.group())->ReduceScatter(stream, full.view, shard);
    }
  }
}

void Executor::AllReduce(const Action& action, Resource wire, Scratch scratch) {
  for (const int f : FlatsOf(action)) {
    const PlacedView data = At(action.writes.front(), f);
    if (memory_.quantized[f].replicas) {
      ExchangeSums(action, f, data);
    } else {
      AllReduce(action, data.view, memory_.storage.At(wire, f).form.dtype, scratch);
    }
  }
}

void Executor::AllReduce(const Action& action, const View& data, DType dtype, Scratch scratch) {
  Stream& stream = this->stream(action.stream);
  const auto sum = [&](const View& sent) {
    if (options_.fake_reduce) return FakeAllReduce(stream, mesh().SizeOf(action.group()), sent);
    communicators_.Over(action.group())->AllReduce(stream, sent);
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
  const ScratchBytes wire(*memory_.units, scratch, data.NumElements() * SizeOf(dtype),
                          action.stream);
  const View sent(wire.view().data, dtype, Shape{data.NumElements()});
  scale(travels, part, data);
  Cast(stream, data, sent);
  scale(stays, part, sent);
  sum(sent);
  Cast(stream, sent, data);
  scale(travels, memory_.divisor, data);
}

BatchRanks Executor::batch_ranks() const {
  if (!options_.batch_norm_sync) return {};
  return {mesh().world_size(), mesh().position()};
}

// The compute stream waits for it: what comes next reads the sum.
void Executor::SumOverRanks(const View& values) {
  const size_t index = cursor_ + ++summed_;
  FSDP_CHECK(index < running_->actions.size() &&
             running_->actions[index].kind == ActionKind::kSumBatch)
      << "segment " << running_->actions[cursor_].segment
      << " asks for a sum that the schedule does not list";
  const Action& action = running_->actions[index];
  Stream &compute = *streams_[0], &stream = this->stream(action.stream);
  stream.SetTag(TagOf({step_->mode, step_->number, index}));
  stream.Wait(compute.Record());
  const View sent = values.Reshape(Shape{values.NumElements()});
  if (options_.fake_reduce) {
    FakeAllReduce(stream, mesh().world_size(), sent);
  } else {
    communicators_.Over(action.group())->AllReduce(stream, sent);
  }
  StepClock& clock = clocks_[steps_ % 2];
  clock.Enter(compute, &StepTimes::communication);
  compute.Wait(stream.Record());
  clock.Enter(compute, work_);
}

// Every hop quantises what is there, and adds what arrives of each rank in their order.
void Executor::ReduceInHops(StreamId id, int f, PlacedView value, const PlacedView& shard) {
  Stream& stream = this->stream(id);
  const auto& hops = memory_.quantized[f].hops;
  const StorageRow& wire = memory_.storage.At(Resource::kWire, f);
  const StorageRow& comes = memory_.storage.At(Resource::kArrived, f);
  const StorageRow& between = memory_.storage.At(Resource::kInsideSum, f);
  const ScratchBytes packed(*memory_.units, Scratch::kWire, wire.bytes(), id);
  const ScratchBytes arrived(*memory_.units, Scratch::kArrived, comes.bytes(), id);
  const ScratchBytes sums(*memory_.units, Scratch::kInsideSum, between.bytes(), id);
  for (const QuantizedTables::Hop& hop : hops) {
    const int64_t bytes = hop.sent.sizes.bytes, ranks = mesh().SizeOf(hop.group);
    const View sent(packed.view().data, DType::kUInt8, Shape{bytes});
    const View come(arrived.view().data, DType::kUInt8, Shape{ranks, bytes / ranks});
    MoveTo(id, value, {sent, wire.place, wire.form.code, &hop.sent});
    if (options_.fake_reduce) {
      const int own = mesh().RanksOf(hop.group).rank();
      FakeAllGather(stream, sent.Slice(own * come.shape[1], come.shape[1]), come.Reshape({bytes}));
    } else {
      communicators_.Over(hop.group)->AllToAll(stream, sent, come, Collective::kReduceScatter);
    }
    value = &hop == &hops.back()
                ? shard
                : PlacedView{View(sums.view().data, between.form.dtype, Shape{between.elements}),
                             between.place};
    MoveTo(id, {come, comes.place, comes.form.code, &hop.arrived}, value);
  }
}

// A part of the sum is made by each copy, and what all copies take for it is what arrives.
void Executor::ExchangeSums(const Action& action, int f, const PlacedView& shard) {
  Stream& stream = this->stream(action.stream);
  const QuantizedTables::Replicas& parts = *memory_.quantized[f].replicas;
  const StorageRow& wire = memory_.storage.At(Resource::kReplicaWire, f);
  const StorageRow& comes = memory_.storage.At(Resource::kReplicaArrived, f);
  const ScratchBytes packed(*memory_.units, Scratch::kReplicaWire, wire.bytes(), action.stream);
  const ScratchBytes arrived(*memory_.units, Scratch::kReplicaArrived, comes.bytes(),
                             action.stream);
  const int64_t ranks = mesh().SizeOf(action.group()), bytes = parts.shard.sizes.bytes;
  const View sent(packed.view().data, DType::kUInt8, Shape{bytes});
  const View come(arrived.view().data, DType::kUInt8, Shape{ranks, bytes / ranks});
  const View own = sent.Slice(mesh().coordinate().replicate * come.shape[1], come.shape[1]);
  const PlacedView all{sent, wire.place, wire.form.code, &parts.shard};
  const PlacedView part{shard.view.Slice(parts.begin, parts.own.sizes.n), shard.place, shard.code};
  Communicator* const over = communicators_.Over(action.group());
  MoveTo(action.stream, shard, all);
  if (options_.fake_reduce) {
    MoveTo(action.stream, all, shard);
    return FakeAllReduce(stream, static_cast<int>(ranks), shard.view);
  }
  over->AllToAll(stream, sent, come, Collective::kAllReduce);
  MoveTo(action.stream, {come, comes.place, comes.form.code, &parts.own}, part);
  MoveTo(action.stream, part, {own, wire.place, wire.form.code, &parts.own});
  over->AllGather(stream, own, sent, Collective::kAllReduce);
  MoveTo(action.stream, all, shard);
}

}  // namespace fsdp
