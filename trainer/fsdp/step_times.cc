#include "trainer/fsdp/step_times.h"

#include "trainer/core/check.h"

namespace fsdp {

void StepClock::Enter(Stream& stream, Part part) {
  if (!marks_.empty() && marks_.back().part == part) return;
  marks_.push_back({part, stream.RecordTime()});
}

StepTimes StepClock::Read() const {
  FSDP_CHECK(!marks_.empty() && end_ != nullptr && end_->Ready());
  StepTimes times;
  times.begin = marks_.front().event->Time();
  times.end = end_->Time();
  for (size_t i = 0; i < marks_.size(); ++i) {
    const double until = i + 1 < marks_.size() ? marks_[i + 1].event->Time() : times.end;
    times.*marks_[i].part += until - marks_[i].event->Time();
  }
  return times;
}

StepClock::Part PartOf(const Action& action) {
  switch (action.kind) {
    case ActionKind::kRun:
      return action.pass == Pass::kForward     ? &StepTimes::forward
             : action.pass == Pass::kRecompute ? &StepTimes::recompute
                                               : &StepTimes::backward;
    case ActionKind::kBegin:
      return &StepTimes::forward;
    case ActionKind::kClear:
    case ActionKind::kTableClear:
      return &StepTimes::backward;
    case ActionKind::kTableCheck:
    case ActionKind::kSumSquares:
    case ActionKind::kClip:
    case ActionKind::kMatrixPieces:
    case ActionKind::kMatrixUpdate:
    case ActionKind::kFactorSums:
    case ActionKind::kFactorFold:
    case ActionKind::kUpdateSquares:
    case ActionKind::kOptimizer:
    case ActionKind::kEnd:
      return &StepTimes::optimizer;
    default:
      return nullptr;
  }
}

StepClock::Part WaitOf(StreamId stream) {
  switch (stream) {
    case StreamId::kData:
      return &StepTimes::data;
    case StreamId::kLeave:
    case StreamId::kUpdate:
    case StreamId::kFetch:
    case StreamId::kSpillRead:
    case StreamId::kSpillWrite:
      return &StepTimes::offload;
    default:
      return &StepTimes::communication;
  }
}

}  // namespace fsdp
