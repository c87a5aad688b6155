#include "trainer/fsdp/step_position.h"

#include <algorithm>
#include <vector>

namespace fsdp {
namespace {

// From the highest bit: the step, its mode, the action.
constexpr int kActionBits = 24, kModeBits = 1;

// What the action is part of; empty where there are no words for it.
std::string PartOf(const Schedule& schedule, size_t index, const Layout& layout, int unit) {
  const std::vector<Action>& actions = schedule.actions;
  switch (actions[index].kind) {
    case ActionKind::kRun:
      return Name(actions[index].pass);
    case ActionKind::kGather: {  // For the next run of the unit.
      const auto next = std::find_if(
          actions.begin() + static_cast<int64_t>(index), actions.end(), [&](const Action& a) {
            return a.kind == ActionKind::kRun && layout.unit_of_segment[a.segment] == unit;
          });
      return next == actions.end() ? "" : Name(next->pass);
    }
    case ActionKind::kClear:
    case ActionKind::kReduce:
    case ActionKind::kAccumulate:
      return "backward";
    case ActionKind::kSumSquares:
    case ActionKind::kOptimizer:
      return "update";
    default:
      return "";
  }
}

}  // namespace

uint64_t TagOf(const StepPosition& position) {
  const uint64_t mode = position.mode == Mode::kTrain ? 0 : 1;
  return (static_cast<uint64_t>(position.step) << kModeBits | mode) << kActionBits |
         position.action;
}

StepPosition PositionOf(uint64_t tag) {
  const uint64_t run = tag >> kActionBits;
  return {(run & 1) != 0 ? Mode::kEval : Mode::kTrain, static_cast<int64_t>(run >> kModeBits),
          tag & ((uint64_t{1} << kActionBits) - 1)};
}

std::string Describe(const StepPosition& position, const Schedule& schedule, const Layout& layout) {
  std::string text = (position.mode == Mode::kEval ? "evaluation after step " : "step ") +
                     std::to_string(position.step);
  if (position.action >= schedule.actions.size()) return text;
  const Action& action = schedule.actions[position.action];
  const int unit =
      action.kind == ActionKind::kRun ? layout.unit_of_segment[action.segment] : action.unit;
  const std::string part = PartOf(schedule, position.action, layout, unit);
  if (unit >= 0 && !part.empty()) {
    text += ", " + part + " of unit " + std::to_string(unit) + " (" +
            layout.flat_parameters[layout.units[unit].flat_parameters.front()].name + ")";
  }
  return text;
}

}  // namespace fsdp
