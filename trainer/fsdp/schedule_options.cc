// The options that a schedule may have, and a schedule as text.
// Tests: tests/trainer/fsdp/schedule_test.cc
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>

#include "trainer/core/philox.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

void ScheduleOptions::Check() const {
  const ScheduleOptions& o = *this;
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
    require(!unit.whole || unit.trains, "what is frozen has no update");
    require(!o.factored || !unit.whole, "factored moments are for units updated by shards");
    require(!unit.cast || !unit.on_host, "units on the host are cast where they are fetched");
  }
  if (!o.factored && !o.Any(&UnitRow::whole)) return;
  for (const SegmentRow& segment : o.segments) {
    const UnitRow& unit = o.units[segment.unit];
    require(!unit.trains || unit.on_host == o.Any(&UnitRow::on_host),
            "the device or the host updates all units where matrices are updated as such");
    require(!o.factored || unit.spilled.empty(), "factored moments read nothing from a disk");
  }
}

std::string Schedule::ToString() const {
  std::ostringstream out;
  out << "gather slots " << gather_slots << ", gradient slots " << gradient_slots;
  if (shard_slots > 0) out << ", shard slots " << shard_slots;
  if (update_slots > 0) out << ", update slots " << update_slots;
  if (spill_slots > 0) out << ", spill slots " << spill_slots;
  if (options.owners != 0) out << ", owners of matrices " << options.owners;
  out << "\n";
  for (size_t i = 0; i < actions.size(); ++i) {
    out << i << " " << fsdp::ToString(actions[i]) << "\n";
  }
  return out.str();
}

uint64_t Schedule::Hash() const { return HashBytes(ToString()); }

}  // namespace fsdp
