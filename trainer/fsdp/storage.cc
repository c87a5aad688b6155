#include "trainer/fsdp/storage.h"

#include <algorithm>
#include <set>

#include "trainer/core/round_up.h"
#include "trainer/fsdp/quantized_collectives.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 64;  // Bytes.

bool CastInGather(const ScheduleOptions& options) {
  return options.mixed_precision.cast == FsdpOptions::MixedPrecision::CastIn::kGather;
}

StorageRow SameAs(Resource other) { return {.home = Home::kSame, .same = other}; }

// The units of which backward gathers a secondary copy.
std::set<int> Kept(const Schedule& train) {
  std::set<int> units;
  for (const Action& action : train.actions) {
    if (!action.writes.empty() && action.writes.front().what == Resource::kSecondary) {
      units.insert(action.unit);
    }
  }
  return units;
}

}  // namespace

Storage::Storage(const Layout& layout, const Schedule& train, bool averages, const Change& change)
    : layout_(layout), rows_(layout.flat_parameters.size()) {
  const std::set<int> kept = Kept(train);
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    for (const int f : layout.units[u].flat_parameters) {
      const FlatParameter& flat = layout.flat_parameters[f];
      AddShards(u, f, train.options);
      AddInUse(u, f, train.options);
      if (kept.count(u) > 0) {
        Row(Resource::kSecondary, f) = {.home = Home::kRun,
                                        .form = {flat.dtypes.compute},
                                        .extent = ShardExtent::kPart,
                                        .elements = flat.size / train.options.secondary};
      }
      const bool average = averages && !flat.frozen && flat.dtypes.compute != DType::kFloat32;
      // Where nothing is gathered, what is evaluated in place of masters that are computed with.
      const bool in_masters = layout.shards == 1 &&
                              Same(Resource::kComputeShard, Resource::kMaster, f) &&
                              PlaceOf(Resource::kMaster, f) == MemoryPlace::kDevice;
      if (average && in_masters) {
        Row(Resource::kAverageInUse, f) = {
            .home = Home::kRun, .form = {flat.dtypes.compute}, .elements = flat.shard_size};
      }
      if (UpdatePlace(f) == MemoryPlace::kDevice) continue;
      if (average || flat.dtypes.compute != flat.dtypes.master) {
        fetch_elements_ = std::max(fetch_elements_, flat.shard_size);
      }
    }
  }
  fetch_elements_ = std::min(fetch_elements_, kFetchElements);
  for (int f = 0; change && f < static_cast<int>(rows_.size()); ++f) {
    for (int r = 0; r < kNumResources; ++r) {
      if (rows_[f][r].home != Home::kNone) change(static_cast<Resource>(r), f, rows_[f][r]);
    }
  }
  PlaceInUnits();
}

// Rows that live as long as the run.
void Storage::AddShards(int unit, int f, const ScheduleOptions& train) {
  const FlatParameter& flat = layout_.flat_parameters[f];
  const DTypes& d = flat.dtypes;
  const bool fetched = train.units[unit].fetched;
  const bool on_host = train.units[unit].on_host && !flat.frozen;
  const MemoryPlace update = fetched || on_host ? MemoryPlace::kPinned : MemoryPlace::kDevice;
  const MemoryPlace copy = fetched ? MemoryPlace::kPinned : MemoryPlace::kDevice;
  // A cast where it is gathered, or fetched, needs no copy.
  const bool cast_on_the_way = CastInGather(train) && (layout_.shards > 1 || fetched);
  const bool shared = update == copy && (d.compute == d.master || cast_on_the_way);
  const bool spilled = on_host && !train.units[unit].spilled.empty();
  const auto shard = [&](MemoryPlace place, DType dtype) {
    return StorageRow{
        .home = Home::kRun, .place = place, .form = {dtype}, .elements = flat.shard_size};
  };
  Row(Resource::kMaster, f) = shard(spilled && !shared ? MemoryPlace::kDisk : update, d.master);
  Row(Resource::kComputeShard, f) = shared ? SameAs(Resource::kMaster) : shard(copy, d.compute);
  const bool cast_in_step = train.units[unit].cast;
  if (cast_in_step && !shared) Row(Resource::kComputeShard, f).home = Home::kStep;
  Row(Resource::kConstant, f) = SameAs(cast_in_step ? Resource::kMaster : Resource::kComputeShard);
  if (flat.frozen) return;
  const MemoryPlace state = spilled ? MemoryPlace::kDisk : update;
  Row(Resource::kState, f) = shard(state, d.state);
  Row(Resource::kAverage, f) = shard(state, DType::kFloat32);
  Row(Resource::kGradientShard, f) = shard(update, layout_.shards > 1 ? DType::kFloat32 : d.grad);
  Row(Resource::kHostGradient, f) = SameAs(Resource::kGradientShard);
  if (!on_host || fetched) return;
  Row(Resource::kUpdated, f) = SameAs(Resource::kMaster);
  if (train.units[unit].copied && d.compute != d.master) {
    Row(Resource::kUpdated, f) = shard(MemoryPlace::kPinned, d.compute);
    Row(Resource::kUpdated, f).home = Home::kSlot;
  }
}

// Rows that are there from action to action.
void Storage::AddInUse(int unit, int f, const ScheduleOptions& train) {
  const FlatParameter& flat = layout_.flat_parameters[f];
  const auto in_use = [&](DType dtype, ShardExtent extent) {
    return StorageRow{.home = Home::kUnit,
                      .form = {dtype},
                      .extent = extent,
                      .elements = extent == ShardExtent::kWhole ? flat.size : flat.shard_size};
  };
  const bool sharded = layout_.shards > 1;
  const bool gathered = sharded || train.units[unit].fetched;
  Row(Resource::kValue, f) =
      gathered ? in_use(flat.dtypes.compute, ShardExtent::kWhole) : SameAs(Resource::kComputeShard);
  Row(Resource::kGatherWire, f) = SameAs(Resource::kValue);
  if (const int64_t bytes = sharded ? QuantizedBytes(flat, train.quantize) : 0; bytes > 0) {
    StorageRow& wire = Row(Resource::kGatherWire, f) = in_use(DType::kUInt8, ShardExtent::kWhole);
    wire.elements = bytes;
    wire.form.code = kQuantizedCode;
  }
  if (flat.frozen) return;
  const bool on_host = train.units[unit].on_host;
  Row(Resource::kGradient, f) = sharded || on_host ? in_use(flat.dtypes.grad, ShardExtent::kWhole)
                                                   : SameAs(Resource::kGradientShard);
  const auto wire = [&](DType from, Resource lies, ShardExtent extent) {
    return flat.dtypes.reduce == from ? SameAs(lies) : in_use(flat.dtypes.reduce, extent);
  };
  Row(Resource::kWire, f) = wire(flat.dtypes.grad, Resource::kGradient, ShardExtent::kWhole);
  Row(Resource::kReplicaWire, f) = wire(sharded ? DType::kFloat32 : flat.dtypes.grad,
                                        Resource::kGradientShard, ShardExtent::kShard);
  if (ReducesQuantized(flat, train.quantize)) AddQuantizedReduce(f, train);
  if (!sharded) return;
  if (train.concat_gradients) Row(Resource::kJoinedGradient, f) = Row(Resource::kGradient, f);
  Row(Resource::kStaging, f) = in_use(DType::kFloat32, ShardExtent::kShard);
  if (on_host) Row(Resource::kShard, f) = Row(Resource::kStaging, f);
}

void Storage::AddQuantizedReduce(int f, const ScheduleOptions& train) {
  const FlatParameter& flat = layout_.flat_parameters[f];
  const auto packed = [](int64_t bytes, int code, ShardExtent extent) {
    return StorageRow{
        .home = Home::kUnit, .form = {DType::kUInt8, code}, .extent = extent, .elements = bytes};
  };
  const int64_t bytes = QuantizedReduceBytes(flat, train.quantize);
  Row(Resource::kWire, f) = packed(bytes, kQuantizedCode, ShardExtent::kWhole);
  Row(Resource::kArrived, f) = packed(bytes, kSummandsCode, ShardExtent::kWhole);
  const int hosts = train.shards / train.inside;
  if (train.inside > 1 && hosts > 1) {
    Row(Resource::kInsideSum, f) = {
        .home = Home::kUnit, .extent = ShardExtent::kPart, .elements = hosts * flat.shard_size};
  }
  if (train.replicas == 1) return;
  const int64_t replica_bytes = QuantizedReplicaBytes(flat, train.replicas, train.quantize);
  Row(Resource::kReplicaWire, f) = packed(replica_bytes, kQuantizedCode, ShardExtent::kShard);
  Row(Resource::kReplicaArrived, f) = packed(replica_bytes, kSummandsCode, ShardExtent::kShard);
}

// One behind the other.
void Storage::PlaceInUnits() {
  for (const Unit& unit : layout_.units) {
    for (int r = 0; r < kNumResources; ++r) {
      int64_t at = 0;
      for (const int f : unit.flat_parameters) {
        StorageRow& row = rows_[f][r];
        if (row.home != Home::kUnit && row.home != Home::kSlot) continue;
        row.offset = at;
        at += RoundUp(row.bytes(), kAlignment);
      }
    }
  }
}

MemoryPlace Storage::UpdatePlace(int flat) const {
  return PlaceOf(Has(Resource::kGradientShard, flat) ? Resource::kGradientShard : Resource::kMaster,
                 flat);
}

const StorageRow& Storage::At(Resource what, int flat) const {
  const StorageRow& row = Declared(what, flat);
  return row.home == Home::kSame ? At(row.same, flat) : row;
}

int64_t Storage::BytesOf(Resource what, int unit) const {
  int64_t end = 0;
  for (const int f : layout_.units[unit].flat_parameters) {
    const StorageRow& row = Declared(what, f);
    if (row.home == Home::kUnit || row.home == Home::kSlot) {
      end = std::max(end, row.offset + row.bytes());
    }
  }
  return end;
}

int64_t Storage::LargestBytes(Resource what) const {
  int64_t largest = 0;
  for (int u = 0; u < static_cast<int>(layout_.units.size()); ++u) {
    largest = std::max(largest, BytesOf(what, u));
  }
  return largest;
}

int64_t Storage::LargestRow(Resource what, int unit) const {
  int64_t largest = 0;
  for (const int f : layout_.units[unit].flat_parameters) {
    const StorageRow& row = Declared(what, f);
    if (row.home == Home::kUnit) largest = std::max(largest, row.bytes());
  }
  return largest;
}

}  // namespace fsdp
