// One operation on a stream's time line, as devices measure it and traces show it.
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
  uint64_t tag = 0;               // The stream's tag when it was enqueued.
  int64_t bytes = 0;              // Bytes that it moves by its costs (BytesMoved); 0 for a wait.
};

// The part of a step that an operation belongs to; empty and -1 where it belongs to none in
// particular.
struct StepPart {
  std::string unit;
  std::string pass;  // "forward", "recompute", "backward" or "update".
  int micro_batch = -1;

  bool operator==(const StepPart&) const = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_SPAN_H_
