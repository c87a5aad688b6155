#include "trainer/fsdp/table_actions.h"

#include <utility>

namespace fsdp {

void TableActions::Begin() {
  Add(ActionKind::kTableTurn, StreamId::kReduce, {{Resource::kNextRoute}}, {{Resource::kRoute}});
  Add(ActionKind::kTableFetch, StreamId::kReduce, {{Resource::kRoute}, {Resource::kTableRows}},
      {{Resource::kTableVectors}, {Resource::kTableRound}});
}

void TableActions::Before(const ScheduledRun& run, Action& action) {
  if (!o_.tables || run.segment != 0) return;
  const bool backward = run.pass == Pass::kBackward;
  if (backward && !std::exchange(cleared_, true)) {
    Add(ActionKind::kTableClear, StreamId::kCompute, {}, {{Resource::kTableGradient}});
  }
  // Backward may pool again, where that is cheap.
  action.reads.push_back({Resource::kRoute});
  action.reads.push_back({Resource::kTableVectors});
  if (backward) action.writes.push_back({Resource::kTableGradient});
}

void TableActions::Behind(const ScheduledRun& run) {
  if (!IsLast(run) || run.pass != Pass::kForward) return;
  if (run.segment == 0) {
    Add(ActionKind::kTableRoute, StreamId::kData, {}, {{Resource::kNextRoute}});
  }
  if (run.segment == std::ssize(o_.segments) - 1) {
    Add(ActionKind::kTableAgree, StreamId::kReduce, {{Resource::kNextRoute}},
        {{Resource::kTableRounds}});
  }
}

void TableActions::BeforeNorm() {
  Add(ActionKind::kTableCheck, StreamId::kCompute, {{Resource::kTableGradient}},
      {{Resource::kScalars}});
  Add(ActionKind::kTableSend, StreamId::kReduce, {{Resource::kRoute}, {Resource::kTableGradient}},
      {{Resource::kTableRound}});
}

void TableActions::Update() {
  Add(ActionKind::kTableUpdate, StreamId::kReduce,
      {{Resource::kScalars}, {Resource::kRoute}, {Resource::kTableGradient}},
      {{Resource::kTableRows}, {Resource::kTableRound}});
}

void TableActions::Add(ActionKind kind, StreamId stream, std::vector<Use> reads,
                       std::vector<Use> writes) {
  if (!o_.tables) return;
  list_.Add(
      {.kind = kind, .stream = stream, .reads = std::move(reads), .writes = std::move(writes)});
}

}  // namespace fsdp
