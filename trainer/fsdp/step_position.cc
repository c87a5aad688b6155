#include "trainer/fsdp/step_position.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace fsdp {
namespace {

// From the highest bit: the step, its mode, the action.
constexpr int kActionBits = 24, kModeBits = 1;

std::string NameOf(int unit, const Layout& layout) {
  return layout.flat_parameters[layout.units[unit].flat_parameters.front()].name;
}

// The unit that the action is about; -1: none.
int UnitOf(const Action& action, const Layout& layout) {
  const bool runs = action.kind == ActionKind::kRun || action.kind == ActionKind::kSumBatch;
  return runs ? layout.unit_of_segment[action.segment] : action.unit;
}

// The pass of the first run of `unit` from `at` on; empty where there is none.
template <typename Iterator>
std::string PassOf(int unit, Iterator at, Iterator end, const Layout& layout) {
  const Iterator run = std::find_if(at, end, [&](const Action& a) {
    return a.kind == ActionKind::kRun && layout.unit_of_segment[a.segment] == unit;
  });
  return run == end ? "" : Name(run->pass);
}

// The part of the step that a move belongs to.
std::string PassOfMove(const Action& move) {
  if (move.Find({Resource::kHostActivations})) {
    return move.stream == StreamId::kLeave ? "forward" : "backward";
  }
  if (move.Find({Resource::kHostGradient, Resource::kJoinedGradient})) return "backward";
  const bool update = move.Find({Resource::kHostPieces, Resource::kHostSums, Resource::kHostSquares,
                                 Resource::kComputeShard});
  return update ? "update" : "";
}

// Empty where there are no words for it.
std::string PassOf(const Schedule& schedule, size_t index, const Layout& layout) {
  const std::vector<Action>& actions = schedule.actions;
  const Action& action = actions[index];
  const auto at = static_cast<int64_t>(index);
  const auto next = [&] {
    return PassOf(action.unit, actions.begin() + at, actions.end(), layout);
  };
  const auto last = [&] {
    return PassOf(action.unit, std::make_reverse_iterator(actions.begin() + at), actions.rend(),
                  layout);
  };
  switch (action.kind) {
    case ActionKind::kRun:
    case ActionKind::kSumBatch:
      return Name(action.pass);
    case ActionKind::kGather:
    case ActionKind::kHostWait:
      return next();
    case ActionKind::kFree:
      return last();
    case ActionKind::kMove:
      if (action.writes.front().what == Resource::kValue) return next();
      return action.writes.front().what == Resource::kSecondary ? last() : PassOfMove(action);
    case ActionKind::kLoad:
    case ActionKind::kDrop:
      return "forward";
    case ActionKind::kClear:
    case ActionKind::kReduce:
    case ActionKind::kAccumulate:
    case ActionKind::kAllReduce:
      return "backward";
    case ActionKind::kSumSquares:
    case ActionKind::kClip:
    case ActionKind::kMatrixPieces:
    case ActionKind::kMatrixSend:
    case ActionKind::kMatrixUpdate:
    case ActionKind::kMatrixReturn:
    case ActionKind::kFactorSums:
    case ActionKind::kFactorReduce:
    case ActionKind::kFactorFold:
    case ActionKind::kUpdateSquares:
    case ActionKind::kUpdateReduce:
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

StepPart PartOf(const StepPosition& position, const Schedule& schedule, const Layout& layout) {
  if (position.action >= schedule.actions.size()) return {};
  const Action& action = schedule.actions[position.action];
  const int unit = UnitOf(action, layout);
  return {unit < 0 ? "" : NameOf(unit, layout), PassOf(schedule, position.action, layout),
          action.micro_batch};
}

std::string Describe(const StepPosition& position, const Schedule& schedule, const Layout& layout) {
  std::string text = (position.mode == Mode::kEval ? "evaluation after step " : "step ") +
                     std::to_string(position.step);
  const StepPart part = PartOf(position, schedule, layout);
  if (part.unit.empty() || part.pass.empty()) return text;
  const int unit = UnitOf(schedule.actions[position.action], layout);
  return text + ", " + part.pass + " of unit " + std::to_string(unit) + " (" + part.unit + ")";
}

}  // namespace fsdp
