// Whose kernels a run's attention takes: decided once, before its memory is planned.
// Tests: tests/e2e/cuda_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_ATTENTION_CHOICE_H_
#define FSDP_TRAIN_TRAINER_LOOP_ATTENTION_CHOICE_H_

#include "models/shape.h"
#include "trainer/loop/choice.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// ChoiceId::kAttention, into options.executor.attention. train.attention: math is asked of nobody.
// A rank with a GPU looks for cuDNN, and has it make the plans of the recipe's shape; where no
// machine is asked it is AttentionToPlan().
const Choice& AttentionChoice();

// Has this thread's handle and plans made where attention is cuDNN's, so that a step makes none.
// Takes memory of the GPU, behind that choice. Throws DeviceError.
void PrepareAttention(const Recipe& recipe, const ModelShape& shape, AttentionBackend backend);

// On a machine that is not here: cuDNN's wherever it could do it, as if it were there. Its
// workspace is the larger.
AttentionBackend AttentionToPlan(const Recipe& recipe, const ModelShape& shape, DeviceType device);

// What a micro-batch's attention is of.
AttentionDims AttentionDimsOf(const Recipe& recipe, const ModelShape& shape);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_ATTENTION_CHOICE_H_
