#include "trainer/fsdp/scheduled_runs.h"

#include <algorithm>

namespace fsdp {

ScheduledRuns::ScheduledRuns(const ScheduleOptions& options) : options_(options) {
  const int segments = static_cast<int>(options.segments.size());
  const auto add = [&](int m, int s, Pass pass) {
    runs_.push_back({m, s, options.segments[s].unit, pass});
  };
  for (int m = 0; m < options.micro_batches; ++m) {
    for (int s = 0; s < segments; ++s) add(m, s, Pass::kForward);
    if (options.mode != Mode::kTrain) continue;
    for (int s = segments - 1; s >= options.backward_from; --s) {
      if (options.segments[s].recomputed) add(m, s, Pass::kRecompute);
      add(m, s, Pass::kBackward);
    }
  }
}

bool ScheduledRuns::IsLastUse(size_t r, int unit) const {
  const bool held = unit == 0 && options_.auto_wrap.outside == WrapPolicy::Outside::kRoot;
  if (held) return r + 1 == runs_.size();
  return std::none_of(runs_.begin() + static_cast<std::ptrdiff_t>(r) + 1, runs_.end(),
                      [&](const ScheduledRun& run) { return Reads(run, unit); });
}

bool ScheduledRuns::IsReadBackward(size_t r) const {
  for (size_t n = r + 1; n < runs_.size() && runs_[n].micro_batch == runs_[r].micro_batch; ++n) {
    if (runs_[n].unit == runs_[r].unit && runs_[n].backward() && Reads(runs_[n])) return true;
  }
  return false;
}

int ScheduledRuns::NextUnit(size_t r) const {
  for (size_t n = r + 1; n < runs_.size(); ++n) {
    if (runs_[n].micro_batch != runs_[r].micro_batch ||
        runs_[n].backward() != runs_[r].backward()) {
      return -1;
    }
    if (runs_[n].unit != 0 && runs_[n].unit != runs_[r].unit && Reads(runs_[n])) {
      return runs_[n].unit;
    }
  }
  return -1;
}

int ScheduledRuns::NextGradient(size_t r) const {
  for (size_t n = r + 1; n < runs_.size() && runs_[n].micro_batch == runs_[r].micro_batch; ++n) {
    const bool another = runs_[n].unit != runs_[r].unit || !runs_[r].backward();
    if (runs_[n].pass == Pass::kBackward && another && options_.units[runs_[n].unit].trains) {
      return runs_[n].unit;
    }
  }
  return -1;
}

bool ScheduledRuns::IsLastOfUnit(size_t r) const {
  for (size_t n = r + 1; n < runs_.size() && runs_[n].micro_batch == runs_[r].micro_batch; ++n) {
    if (runs_[n].unit == runs_[r].unit) return false;
  }
  return true;
}

}  // namespace fsdp
