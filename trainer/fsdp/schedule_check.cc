#include "trainer/fsdp/schedule_check.h"

#include <iterator>
#include <stdexcept>
#include <string>

namespace fsdp {

void CheckScheduleOptions(const ScheduleOptions& o) {
  const auto require = [](bool ok, const std::string& what) {
    if (!ok) throw std::invalid_argument("[MakeSchedule] " + what);
  };
  require(!o.segments.empty(), "no segments");
  for (const SegmentRow& segment : o.segments) {
    require(segment.unit >= 0 && segment.unit < std::ssize(o.units), "a segment is of a unit");
  }
  require(o.shards >= 1 && o.replicas >= 1, "shards and replicas must be >= 1");
  require(o.shards == 1 || o.replicas == 1 || IsHybrid(o.sharding_strategy),
          "shards and replicas are of hybrid strategies");
  require(o.sharding_strategy != Strategy::kNoShard || o.shards == 1, "no_shard has one shard");
  require(o.shards == 1 || !o.Any(&UnitRow::cast), "units are cast where there is one shard");
  require(o.secondary >= 1 && o.shards % o.secondary == 0, "secondary must divide shards");
  require(o.backward_from >= 0 && o.backward_from < std::ssize(o.segments),
          "backward_from must be a segment");
  require(o.micro_batches >= 1, "micro_batches must be >= 1");
  require(o.limit_all_gathers >= 0, "limit_all_gathers must be >= 0");
  require(o.reduce_buffers >= 1, "reduce_buffers must be >= 1");
  const bool caching = o.buffers == FsdpOptions::Buffers::kCaching;
  require(!caching || o.limiter == FsdpOptions::Limiter::kHost,
          "the device limits gathers by slots: buffers caching need limiter host");
  require(caching || !o.concat_gradients, "concat_gradients takes memory as buffers caching do");
  require(o.communicators == 1 || o.communicators == 2, "communicators must be 1 or 2");
  require(o.cpu_offload.spill_ahead >= 0, "spill_ahead must be >= 0");
  for (const UnitRow& unit : o.units) {
    require(!caching || (!unit.on_host && !unit.fetched),
            "what is offloaded has slots: buffers caching have none");
    const bool on_host = o.mode == Mode::kTrain ? unit.on_host : unit.fetched;
    require(unit.spilled.empty() || on_host,
            "spilled units are updated on the host, and evaluated where they are fetched");
    require(unit.trains || !unit.on_host, "what is frozen has no update");
    require(!unit.cast || !unit.on_host, "units on the host are cast where they are fetched");
  }
}

}  // namespace fsdp
