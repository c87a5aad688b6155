// Steps as traces have them, drawn: streams and host over time, waits hatched, memory below.
// Tests: tests/e2e/sweep_test.cc
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_STEP_PICTURE_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_STEP_PICTURE_H_

#include <string>
#include <vector>

namespace fsdp {

// Whether `fsdp-train simulate --out` made it: it has simulate.json, and none of a run's records.
bool IsSimulated(const std::string& directory);

// The last step that each directory has a trace of, all on one scale of seconds and one of bytes,
// as HTML. Points of memory (core/memory_point.h) are drawn where the trace has them: real runs
// have those of planned memory alone. Directories without a trace say so. Throws CheckpointError
// where a simulated one cannot be read.
std::string StepPictures(const std::vector<std::string>& directories);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_STEP_PICTURE_H_
