// What a training step enqueues, without running it.
#ifndef FSDP_TRAIN_TRAINER_ENGINE_STEP_OPERATIONS_H_
#define FSDP_TRAIN_TRAINER_ENGINE_STEP_OPERATIONS_H_

#include <cstdint>
#include <functional>

#include "trainer/engine/session.h"
#include "trainer/engine/step_resource.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Of rank 0 of `world`, for a device with these kernels, recorded on the simulated one: `seen` gets
// each operation of the step, but not of what comes before it, and what it is spent on.
void ObserveStep(Model& model, const SessionOptions& options, int world, DeviceType kernels,
                 const std::function<void(const Operation&, StepResource)>& seen);

// The same, with the stream that each operation is enqueued on.
void ObserveStreams(Model& model, const SessionOptions& options, int world, DeviceType kernels,
                    const std::function<void(const Operation&, const Stream&)>& seen);

// Forward and backward of one sample, as MFU counts them: the products of one pass on the simulated
// device, nothing recomputed; of what is frozen, what its gradients would take is not done.
// `length` as in Model::Inputs().
double FlopsPerSample(Model& model, int64_t length);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_STEP_OPERATIONS_H_
