// The room that a rank gets on its GPU.
// Tests: tests/e2e/cuda_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_GPU_ROOM_H_
#define FSDP_TRAIN_TRAINER_LOOP_GPU_ROOM_H_

#include "trainer/core/errors.h"
#include "trainer/engine/plan.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

struct Recipe;

// Bytes of a rank's room that are held back for kernels. CUDA loads a kernel's code at its first
// launch: our own in the first step, a library's whenever the library chooses another. They are
// estimates, not measured on a GPU. Ranks that share a GPU have a context each, and hold back less.
inline constexpr int64_t kCodeBytes = int64_t{512} << 20, kSharedCodeBytes = int64_t{256} << 20;
PlanTarget LessCode(PlanTarget target, int sharers);

// The GPU's free memory now, in equal parts for `sharers`, less the bytes held back for code. A
// CPU's room is not known: empty. Makes the GPU this thread's. Throws DeviceError.
PlanTarget RoomNow(const ChosenDevice& device, int sharers);

// RoomNow() before a run of the recipe has anything on the GPU: less the bytes that communicators
// take for certain.
PlanTarget RoomToBegin(const ChosenDevice& device, int sharers, const Recipe& recipe);

// The room on a GPU that nobody has asked, with the memory of `target`: less the bytes that
// communicators of a run of the recipe may take, with so many multiprocessors for a collective
// (multiprocessors.h).
PlanTarget RoomUnseen(PlanTarget target, const Recipe& recipe, int blocks);

// Adds to `error` how much a rank needs, and whether as much is still free. `error` came from
// allocating what a plan of these options says, which fitted when the plan was made. Throws
// DeviceError.
MemoryError WithWhatItNeeds(const MemoryError& error, Model& model, const SessionOptions& options,
                            const ChosenDevice& device, int world, int local_world);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_GPU_ROOM_H_
