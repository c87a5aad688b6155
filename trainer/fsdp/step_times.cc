#include "trainer/fsdp/step_times.h"

#include "trainer/core/check.h"

namespace fsdp {

void StepClock::Enter(Stream& stream, Part part) {
  if (!marks_.empty() && marks_.back().part == part) return;
  marks_.push_back({part, stream.Record()});
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

}  // namespace fsdp
