// One operation on a stream's time line: what devices measure and traces show.
// Tests: tests/trainer/observe/chrome_trace_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_SPAN_H_
#define FSDP_TRAIN_TRAINER_CORE_SPAN_H_

#include <cstdint>
#include <string>

namespace fsdp {

struct Span {
  std::string name;
  std::string stream;
  double begin_s = 0, end_s = 0;  // On the device's clock.
  uint64_t tag = 0;               // That its stream had when it was enqueued.
  int64_t bytes = 0;              // What it moves, as its costs say (BytesMoved); 0 for a wait.
};

// What of a step an operation is part of; empty and -1 where it is of none in particular.
struct StepPart {
  std::string unit;
  std::string pass;  // "forward", "recompute", "backward" or "update".
  int micro_batch = -1;

  bool operator==(const StepPart&) const = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_SPAN_H_
