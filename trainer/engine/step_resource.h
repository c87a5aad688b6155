// What a rank's step spends its time on.
// Tests: tests/trainer/engine/launches_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_STEP_RESOURCE_H_
#define FSDP_TRAIN_TRAINER_ENGINE_STEP_RESOURCE_H_

#include <string_view>

#include "trainer/runtime/stream.h"

namespace fsdp {

// Each works beside the others.
enum class StepResource {
  kDevice,     // Its kernels, copies in its memory, collectives.
  kToHost,     // The link between device and host, each way.
  kToDevice,   //
  kHost,       // Updates by the host, with cpu_offload.
  kDiskRead,   // Of cpu_offload.spill.
  kDiskWrite,  //
};
inline constexpr int kNumStepResources = 6;

// `stream`: the name of the executor's.
StepResource ResourceOf(const Operation& operation, std::string_view stream);
// Bytes that it takes there: over a link those sent, of memory those read and those written.
double BytesThere(const Operation& operation, StepResource resource);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_STEP_RESOURCE_H_
