#include "trainer/fsdp/device_updates.h"

#include <utility>

namespace fsdp {

DeviceUpdates::DeviceUpdates(const ScheduleOptions& options, ActionList& list, HostUpdates& host,
                             const std::vector<int>& order)
    : options_(options),
      list_(list),
      host_(host),
      travels_(options.shards * options.replicas > 1),
      on_host_(options.Any(&UnitRow::on_host)),
      slots_(MatrixSlots(travels_, on_host_)),
      order_(order) {
  for (const int u : order) {
    if (options.units[u].whole) units_.push_back(u);
  }
}

Use DeviceUpdates::In(Resource what, int i) const {
  return {.what = what, .of = units_[i], .slot = i % slots_};
}

void DeviceUpdates::Add(ActionKind kind, StreamId stream, int i, std::vector<Use> reads,
                        std::vector<Use> writes) {
  list_.Add({.kind = kind,
             .stream = stream,
             .unit = units_[i],
             .reads = std::move(reads),
             .writes = std::move(writes)});
}

void DeviceUpdates::Move(StreamId stream, const Use& from, const Use& to) {
  list_.Add({.kind = ActionKind::kMove,
             .stream = stream,
             .unit = from.slot < 0 ? -1 : from.of,
             .reads = {from},
             .writes = {to}});
}

void DeviceUpdates::Send(int i) {
  if (on_host_) {
    host_.MakePieces(units_[i], Results(i));
    Move(StreamId::kFetch, Results(i), Pieces(i));
  } else {
    Add(ActionKind::kMatrixPieces, StreamId::kCompute, i,
        {{Resource::kScalars}, {Resource::kGradientShard, units_[i]}}, {Pieces(i)});
  }
  if (travels_) Add(ActionKind::kMatrixSend, StreamId::kReduce, i, {Pieces(i)}, {Owned(i)});
}

void DeviceUpdates::Return(int i) {
  if (travels_) Add(ActionKind::kMatrixReturn, StreamId::kReduce, i, {Owned(i)}, {Pieces(i)});
  if (on_host_) Move(StreamId::kLeave, Pieces(i), Results(i));
}

void DeviceUpdates::SumOverUnits(ActionKind sum, ActionKind reduce, Resource what,
                                 Resource on_host) {
  for (const int unit : order_) {
    const Use gradient{on_host_ ? Resource::kHostGradient : Resource::kGradientShard, unit};
    list_.Add({.kind = sum,
               .stream = on_host_ ? StreamId::kUpdate : StreamId::kCompute,
               .unit = unit,
               .reads = {{on_host_ ? Resource::kFactors : Resource::kScalars},
                         gradient,
                         {Resource::kMaster, unit},
                         {on_host_ ? Resource::kHostSums : Resource::kFactorSums}},
               .writes = {{on_host_ ? on_host : what}}});
  }
  if (on_host_) Move(StreamId::kFetch, {on_host}, {what});
  if (travels_) list_.Add({.kind = reduce, .stream = StreamId::kReduce, .writes = {{what}}});
}

void DeviceUpdates::FactorMoments() {
  const Use sums{Resource::kFactorSums}, squares{Resource::kUpdateSquares};
  SumOverUnits(ActionKind::kFactorSums, ActionKind::kFactorReduce, sums.what, Resource::kHostSums);
  list_.Add({.kind = ActionKind::kFactorFold, .writes = {sums}});
  if (on_host_) Move(StreamId::kLeave, sums, {Resource::kHostSums});
  SumOverUnits(ActionKind::kUpdateSquares, ActionKind::kUpdateReduce, squares.what,
               Resource::kHostSquares);
  if (on_host_) Move(StreamId::kLeave, squares, {Resource::kHostSquares});
}

void DeviceUpdates::UpdateShard(int unit, std::vector<Use> read) {
  const bool on_host = options_.units[unit].on_host;
  if (options_.factored) {
    read.push_back({on_host ? Resource::kHostSquares : Resource::kUpdateSquares});
  }
  if (on_host) return host_.Update(unit, read);
  std::vector<Use> reads = {{Resource::kScalars}, {Resource::kGradientShard, unit}};
  reads.insert(reads.end(), read.begin(), read.end());
  std::vector<Use> writes = {{Resource::kMaster, unit}};
  if (!options_.units[unit].cast) writes.push_back({Resource::kComputeShard, unit});
  list_.Add({.kind = ActionKind::kOptimizer, .unit = unit, .reads = reads, .writes = writes});
}

void DeviceUpdates::Update(int unit) {
  if (!options_.units[unit].whole) return UpdateShard(unit);
  const int i = next_++, last = static_cast<int>(units_.size()) - 1;
  if (i == 0 || slots_ == 1) Send(i);
  if (i < last && slots_ > 1) Send(i + 1);
  Add(ActionKind::kMatrixUpdate, StreamId::kCompute, i, {}, {travels_ ? Owned(i) : Pieces(i)});
  Return(i);
  if (slots_ == 1) return UpdateShard(unit, {Results(i)});
  if (i > 0) UpdateShard(units_[i - 1], {Results(i - 1)});
  if (i == last) UpdateShard(unit, {Results(i)});
}

}  // namespace fsdp
