// A schedule as text.
// Tests: tests/trainer/fsdp/schedule_test.cc
#include <sstream>

#include "trainer/core/philox.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

std::string Schedule::ToString() const {
  std::ostringstream out;
  out << "gather slots " << gather_slots << ", gradient slots " << gradient_slots;
  if (shard_slots > 0) out << ", shard slots " << shard_slots;
  if (update_slots > 0) out << ", update slots " << update_slots;
  if (spill_slots > 0) out << ", spill slots " << spill_slots;
  out << "\n";
  for (size_t i = 0; i < actions.size(); ++i) {
    out << i << " " << fsdp::ToString(actions[i]) << "\n";
  }
  return out.str();
}

uint64_t Schedule::Hash() const { return HashBytes(ToString()); }

}  // namespace fsdp
