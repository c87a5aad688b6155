// The operations that a training step enqueues, without running it.
#ifndef FSDP_TRAIN_TRAINER_ENGINE_STEP_OPERATIONS_H_
#define FSDP_TRAIN_TRAINER_ENGINE_STEP_OPERATIONS_H_

#include <cstdint>
#include <functional>
#include <set>

#include "trainer/engine/session.h"
#include "trainer/engine/step_resource.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Records a step of rank 0 of `world` on the simulated device, for a device with `kernels`. `seen`
// gets each operation of the step and the resource that it takes, but nothing from before the step.
void ObserveStep(Model& model, const SessionOptions& options, int world, DeviceType kernels,
                 const std::function<void(const Operation&, StepResource)>& seen);

// ObserveStep() with the stream that each operation is enqueued on.
void ObserveStreams(Model& model, const SessionOptions& options, int world, DeviceType kernels,
                    const std::function<void(const Operation&, const Stream&)>& seen);

// The products of convolutions in a step and in an evaluation that cuDNN can compute
// (ops/cudnn/convolution_cudnn.h). Empty where the model has none.
std::set<ConvolutionCall> StepConvolutions(Model& model, const SessionOptions& options);

// FLOPs of one sample's forward and backward, as MFU counts them: the products of one pass on the
// simulated device, without recomputation and without gradients of frozen parameters. `length` as
// in Model::Inputs().
double FlopsPerSample(Model& model, int64_t length);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_STEP_OPERATIONS_H_
