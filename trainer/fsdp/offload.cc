#include "trainer/fsdp/offload.h"

#include <algorithm>
#include <set>

namespace fsdp {
namespace {

bool CastInGather(const ScheduleOptions& options) {
  return options.mixed_precision.cast == FsdpOptions::MixedPrecision::CastIn::kGather;
}

}  // namespace

bool Offloads(const ScheduleOptions& train) {
  return !train.host_units.empty() || !train.fetched_units.empty() ||
         !train.offloaded_segments.empty();
}

int UpdateThreads(const ScheduleOptions& train, int compute_threads) {
  const auto asked = static_cast<int>(train.cpu_offload.threads);
  return train.host_units.empty() ? 1 : asked > 0 ? asked : compute_threads;
}

std::vector<ShardMemory> PlacesOf(const Layout& layout, const ScheduleOptions& train) {
  std::vector<ShardMemory> places(layout.flat_parameters.size());
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    const bool fetched = train.fetched_units.count(u) > 0;
    const bool on_host = train.host_units.count(u) > 0;
    for (const int f : layout.units[u].flat_parameters) {
      const FlatParameter& flat = layout.flat_parameters[f];
      ShardMemory& place = places[f];
      const bool updated_there = on_host && !flat.frozen;
      if (fetched || updated_there) place.update = MemoryPlace::kPinned;
      if (fetched) place.copy = MemoryPlace::kPinned;
      // What is cast where it is gathered needs no copy; nor where it is fetched.
      const bool cast_on_the_way = CastInGather(train) && (layout.shards > 1 || fetched);
      place.shared = place.update == place.copy &&
                     (flat.dtypes.compute == flat.dtypes.master || cast_on_the_way);
      place.master = place.state = place.update;
      if (!updated_there || train.spilled_units.count(u) == 0) continue;
      place.state = MemoryPlace::kDisk;
      if (!place.shared) place.master = MemoryPlace::kDisk;
    }
  }
  return places;
}

int64_t LargestGradientShards(const Layout& layout, const std::set<int>& units) {
  int64_t largest = 0;
  for (const int u : units) {
    int64_t bytes = 0;
    for (const int f : layout.TrainableFlatParameters(u)) {
      bytes += layout.flat_parameters[f].shard_size * SizeOf(DType::kFloat32);
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

int64_t LargestCopies(const Layout& layout, const ScheduleOptions& train) {
  int64_t largest = 0;
  for (const int u : train.copied_units) {
    int64_t bytes = 0;
    for (const int f : layout.TrainableFlatParameters(u)) {
      const FlatParameter& flat = layout.flat_parameters[f];
      if (flat.dtypes.compute == flat.dtypes.master) continue;
      bytes += flat.shard_size * SizeOf(flat.dtypes.compute);
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

int64_t FetchElements(const Layout& layout, const ScheduleOptions& train, bool averages) {
  int64_t most = 0;
  const std::vector<ShardMemory> places = PlacesOf(layout, train);
  for (size_t f = 0; f < places.size(); ++f) {
    const FlatParameter& flat = layout.flat_parameters[f];
    const bool average = averages && !flat.frozen && flat.dtypes.compute != DType::kFloat32;
    if (places[f].update == MemoryPlace::kDevice) continue;
    if (average || flat.dtypes.compute != flat.dtypes.master) {
      most = std::max(most, flat.shard_size);
    }
  }
  return std::min(most, kFetchElements);
}

}  // namespace fsdp
