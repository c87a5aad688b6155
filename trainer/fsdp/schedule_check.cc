#include "trainer/fsdp/schedule_check.h"

#include <stdexcept>
#include <string>

namespace fsdp {

void CheckScheduleOptions(const ScheduleOptions& o) {
  const auto require = [](bool ok, const std::string& what) {
    if (!ok) throw std::invalid_argument("[MakeSchedule] " + what);
  };
  require(!o.unit_of_segment.empty(), "no segments");
  require(o.recomputed.size() == o.unit_of_segment.size(), "recomputed must have a bit a segment");
  require(o.shards >= 1 && o.replicas >= 1, "shards and replicas must be >= 1");
  require(o.shards == 1 || o.replicas == 1 || IsHybrid(o.sharding_strategy),
          "shards and replicas are of hybrid strategies");
  require(o.sharding_strategy != Strategy::kNoShard || o.shards == 1, "no_shard has one shard");
  require(o.shards == 1 || o.cast_units.empty(), "cast_units are of one shard");
  require(o.secondary >= 1 && o.shards % o.secondary == 0, "secondary must divide shards");
  require(o.backward_from >= 0 && o.backward_from < static_cast<int>(o.unit_of_segment.size()),
          "backward_from must be a segment");
  require(o.micro_batches >= 1, "micro_batches must be >= 1");
  require(o.limit_all_gathers >= 0, "limit_all_gathers must be >= 0");
  require(o.reduce_buffers >= 1, "reduce_buffers must be >= 1");
  const bool caching = o.buffers == FsdpOptions::Buffers::kCaching;
  require(!caching || o.limiter == FsdpOptions::Limiter::kHost,
          "the device limits gathers by slots: buffers caching need limiter host");
  require(o.communicators == 1 || o.communicators == 2, "communicators must be 1 or 2");
  require(o.cpu_offload.spill_ahead >= 0, "spill_ahead must be >= 0");
  for (const auto& [unit, parts] : o.spilled_units) {
    const bool train = o.mode == Mode::kTrain;
    require(!parts.empty(), "spilled_units have parts");
    require((train ? o.host_units : o.fetched_units).count(unit) > 0,
            "spilled_units are updated on the host, and evaluated where they are fetched");
  }
  for (const int unit : o.host_units) {
    require(o.frozen_units.count(unit) == 0, "what is frozen has no update");
    require(o.cast_units.count(unit) == 0, "host_units are cast where they are fetched");
  }
}

}  // namespace fsdp
