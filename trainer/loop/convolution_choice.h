// The choice of the kernels for a run's convolutions: made before the run's memory is planned.
// Tests: tests/trainer/loop/choices_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_CONVOLUTION_CHOICE_H_
#define FSDP_TRAIN_TRAINER_LOOP_CONVOLUTION_CHOICE_H_

#include "trainer/loop/choice.h"

namespace fsdp {

// ChoiceId::kConvolution, into options.executor.convolution and run.convolutions. A rank with a GPU
// looks for cuDNN, and asks it for a plan of each product of the model's convolutions; our own
// kernels compute those without one. Where no machine is asked cuDNN computes all that it can have,
// as if it were installed: its workspace is the larger.
const Choice& ConvolutionChoice();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_CONVOLUTION_CHOICE_H_
