// A schedule in words, and the hash of them that ranks compare.
// Tests: tests/trainer/fsdp/schedule_test.cc
#include <sstream>
#include <string>

#include "trainer/core/philox.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {
namespace {

const char* Name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kBegin:
      return "begin";
    case ActionKind::kLoad:
      return "load";
    case ActionKind::kHostWait:
      return "wait";
    case ActionKind::kFetch:
      return "fetch";
    case ActionKind::kGather:
      return "gather";
    case ActionKind::kRun:
      return "run";
    case ActionKind::kLeaveActivations:
      return "leave_activations";
    case ActionKind::kDropActivations:
      return "drop_activations";
    case ActionKind::kFetchActivations:
      return "fetch_activations";
    case ActionKind::kKeep:
      return "keep";
    case ActionKind::kFree:
      return "free";
    case ActionKind::kClear:
      return "clear";
    case ActionKind::kFetchGradient:
      return "fetch_gradient";
    case ActionKind::kReduce:
      return "reduce";
    case ActionKind::kAccumulate:
      return "accumulate";
    case ActionKind::kAllReduce:
      return "all_reduce";
    case ActionKind::kSumSquares:
      return "sum_squares";
    case ActionKind::kLeave:
      return "leave";
    case ActionKind::kReduceScalars:
      return "reduce_scalars";
    case ActionKind::kClip:
      return "clip";
    case ActionKind::kOptimizer:
      return "optimizer";
    case ActionKind::kReturn:
      return "return";
    case ActionKind::kReadSpilled:
      return "read_spilled";
    case ActionKind::kWriteSpilled:
      return "write_spilled";
    case ActionKind::kEnd:
      return "end";
  }
  return "?";
}

constexpr const char* kStreamNames[kNumStreams] = {"compute",    "gather",     "reduce", "data",
                                                   "replicate",  "leave",      "update", "fetch",
                                                   "spill_read", "spill_write"};

}  // namespace

const char* Name(Pass pass) {
  return pass == Pass::kForward ? "forward" : pass == Pass::kRecompute ? "recompute" : "backward";
}

std::string ToString(const Action& a) {
  std::ostringstream out;
  const bool host = a.kind == ActionKind::kHostWait;
  out << (host ? "host" : kStreamNames[static_cast<int>(a.stream)]) << ": " << Name(a.kind);
  if (a.kind == ActionKind::kRun) out << " " << Name(a.pass);
  if (a.segment >= 0) out << " segment " << a.segment;
  if (a.unit >= 0) out << " unit " << a.unit;
  if (a.micro_batch >= 0) out << " micro-batch " << a.micro_batch;
  if (a.slot >= 0) out << " slot " << a.slot;
  if (a.shard_slot >= 0) out << " shard slot " << a.shard_slot;
  if (a.update_slot >= 0) out << " update slot " << a.update_slot;
  if (a.part >= 0) out << " part " << a.part;
  if (a.spill_slot >= 0) out << " spill slot " << a.spill_slot;
  if (a.secondary) out << " secondary";
  if (a.staged) out << " staged";
  for (const Wait& wait : a.waits) {
    out << (wait.pacing ? " paced by " : " after ") << wait.action
        << (wait.step_before ? " of the step before" : "");
  }
  return out.str();
}

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
