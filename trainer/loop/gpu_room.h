// What a rank gets of its GPU.
// Tests: tests/e2e/cuda_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_GPU_ROOM_H_
#define FSDP_TRAIN_TRAINER_LOOP_GPU_ROOM_H_

#include "trainer/core/errors.h"
#include "trainer/engine/plan.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

// Of a GPU's memory, what is held back of a rank's room for kernels: CUDA loads the code of one
// when it is first launched, of ours in the first step and of libraries' whenever they choose
// another. An estimate, which no GPU has been asked. Ranks that share a GPU have a context each,
// and less.
inline constexpr int64_t kCodeBytes = int64_t{512} << 20, kSharedCodeBytes = int64_t{256} << 20;
PlanTarget LessCode(PlanTarget target, int sharers);

// What is free of it now, in equal parts for `sharers`, less what is held back for code; of the
// CPU, nothing that is not known.
// Makes the GPU this thread's. Throws DeviceError.
PlanTarget RoomNow(const ChosenDevice& device, int sharers);

// The same before there is anything of the run on it: less what communicators take for certain.
PlanTarget RoomToBegin(const ChosenDevice& device, int sharers);

// On a GPU that nobody has asked, of whose memory this is: less what communicators may take.
PlanTarget RoomUnseen(PlanTarget target);

// What a rank needs, and whether there still is as much, for a message: `error` came of taking what
// a plan of these options says, and that fitted when it was made. Throws DeviceError.
MemoryError WithWhatItNeeds(const MemoryError& error, Model& model, const SessionOptions& options,
                            const ChosenDevice& device, int world, int local_world);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_GPU_ROOM_H_
