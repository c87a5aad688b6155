#include "trainer/fsdp/device_updates.h"

#include <utility>

namespace fsdp {

DeviceUpdates::DeviceUpdates(const ScheduleOptions& options, ActionList& list,
                             const std::vector<int>& order)
    : options_(options),
      list_(list),
      travels_(options.shards * options.replicas > 1),
      order_(order) {
  for (const int u : order) {
    if (options.units[u].whole) units_.push_back(u);
  }
}

Use DeviceUpdates::In(Resource what, int i) const {
  return {.what = what, .of = units_[i], .slot = travels_ ? i % kMatrixSlots : 0};
}

void DeviceUpdates::Add(ActionKind kind, StreamId stream, int i, std::vector<Use> reads,
                        std::vector<Use> writes) {
  list_.Add({.kind = kind,
             .stream = stream,
             .unit = units_[i],
             .reads = std::move(reads),
             .writes = std::move(writes)});
}

void DeviceUpdates::Send(int i) {
  Add(ActionKind::kMatrixPieces, StreamId::kCompute, i,
      {{Resource::kScalars}, {Resource::kGradientShard, units_[i]}}, {Pieces(i)});
  if (travels_) Add(ActionKind::kMatrixSend, StreamId::kReduce, i, {Pieces(i)}, {Owned(i)});
}

// `sum` of each unit, and `reduce` of all.
void DeviceUpdates::SumOverUnits(ActionKind sum, ActionKind reduce, Resource what) {
  for (const int unit : order_) {
    list_.Add({.kind = sum,
               .unit = unit,
               .reads = {{Resource::kScalars},
                         {Resource::kGradientShard, unit},
                         {Resource::kMaster, unit},
                         {Resource::kFactorSums}},
               .writes = {{what}}});
  }
  if (travels_) list_.Add({.kind = reduce, .stream = StreamId::kReduce, .writes = {{what}}});
}

void DeviceUpdates::FactorMoments() {
  SumOverUnits(ActionKind::kFactorSums, ActionKind::kFactorReduce, Resource::kFactorSums);
  list_.Add({.kind = ActionKind::kFactorFold, .writes = {{Resource::kFactorSums}}});
  SumOverUnits(ActionKind::kUpdateSquares, ActionKind::kUpdateReduce, Resource::kUpdateSquares);
}

void DeviceUpdates::UpdateShard(int unit, std::vector<Use> pieces) {
  std::vector<Use> reads = {{Resource::kScalars}, {Resource::kGradientShard, unit}};
  reads.insert(reads.end(), pieces.begin(), pieces.end());
  if (options_.factored) reads.push_back({Resource::kUpdateSquares});
  std::vector<Use> writes = {{Resource::kMaster, unit}};
  if (!options_.units[unit].cast) writes.push_back({Resource::kComputeShard, unit});
  list_.Add({.kind = ActionKind::kOptimizer, .unit = unit, .reads = reads, .writes = writes});
}

void DeviceUpdates::Update(int unit) {
  if (!options_.units[unit].whole) return UpdateShard(unit);
  const int i = next_++, last = static_cast<int>(units_.size()) - 1;
  if (i == 0 || !travels_) Send(i);
  if (!travels_) {
    Add(ActionKind::kMatrixUpdate, StreamId::kCompute, i, {}, {Pieces(i)});
    return UpdateShard(unit, {Pieces(i)});
  }
  if (i < last) Send(i + 1);
  Add(ActionKind::kMatrixUpdate, StreamId::kCompute, i, {}, {Owned(i)});
  Add(ActionKind::kMatrixReturn, StreamId::kReduce, i, {Owned(i)}, {Pieces(i)});
  if (i > 0) UpdateShard(units_[i - 1], {Pieces(i - 1)});
  if (i == last) UpdateShard(unit, {Pieces(i)});
}

}  // namespace fsdp
