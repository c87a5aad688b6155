// A job that is told to stop before its first step has nothing to save: it ends at once, on all
// ranks alike, whichever of them hears of it first.
// Tests: tests/trainer/loop/failure_protocol_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_EARLY_STOP_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_EARLY_STOP_H_

#include <string_view>

#include "trainer/core/errors.h"

namespace fsdp {

// Also the reason that the others hear from the store, somewhere in a message.
struct EarlyStop : Error {
  static constexpr const char* kReason = "stopped by a signal before the first step";
  EarlyStop() : Error(ExitCode::kStopped, kReason) {}

  static bool Is(std::string_view message) { return message.find(kReason) != message.npos; }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_EARLY_STOP_H_
