// The choices of kernels for a run's attention and convolutions: made once, before the run's memory
// is planned.
// Tests: tests/e2e/cuda_test.cc
// Tests: tests/trainer/loop/choices_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_KERNEL_CHOICE_H_
#define FSDP_TRAIN_TRAINER_LOOP_KERNEL_CHOICE_H_

#include "trainer/loop/choice.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// ChoiceId::kAttention, into options.executor.attention. A rank with a GPU looks for cuDNN, and has
// it make the plans of the recipe's shape. With train.attention: math nobody is asked. Where no
// machine is asked the answer is AttentionToPlan().
const Choice& AttentionChoice();

// Has this thread's handle and plans made where attention is cuDNN's, so that a step makes none.
// Takes memory of the GPU, behind that choice. Throws DeviceError.
void PrepareAttention(const Recipe& recipe, const ModelShape& shape, AttentionBackend backend);

// The backend on a machine that is not here: cuDNN's wherever it could compute this attention, as
// if it were installed. Its workspace is the larger.
AttentionBackend AttentionToPlan(const Recipe& recipe, const ModelShape& shape, DeviceType device);

// ChoiceId::kConvolution, into options.executor.convolution and run.convolutions. A rank with a GPU
// looks for cuDNN, and asks it for a plan of each product of the model's convolutions; our own
// kernels compute those without one. Where no machine is asked cuDNN computes all that it can have,
// as if it were installed: its workspace is the larger.
const Choice& ConvolutionChoice();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_KERNEL_CHOICE_H_
