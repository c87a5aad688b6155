// The choice of the kernels for a run's attention: made once, before the run's memory is planned.
// Tests: tests/e2e/cuda_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_ATTENTION_CHOICE_H_
#define FSDP_TRAIN_TRAINER_LOOP_ATTENTION_CHOICE_H_

#include "trainer/loop/choice.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/runtime/device.h"

namespace fsdp {

struct Recipe;

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_ATTENTION_CHOICE_H_
