// The resources on which a rank's step spends its time.
// Tests: tests/trainer/engine/launches_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_STEP_RESOURCE_H_
#define FSDP_TRAIN_TRAINER_ENGINE_STEP_RESOURCE_H_

#include <string_view>

namespace fsdp {

struct Operation;

// The resources work side by side.
enum class StepResource {
  kDevice,     // The device's kernels, copies in its memory, collectives.
  kToHost,     // The link between device and host, each way.
  kToDevice,   //
  kHost,       // Updates by the host, with cpu_offload.
  kDiskRead,   // For cpu_offload.spill.
  kDiskWrite,  //
};
inline constexpr int kNumStepResources = 6;

// `stream`: the name of the executor's stream.
StepResource ResourceOf(const Operation& operation, std::string_view stream);
// Bytes that the operation takes of the resource: those sent over a link, or those read and written
// in memory.
double BytesThere(const Operation& operation, StepResource resource);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_STEP_RESOURCE_H_
