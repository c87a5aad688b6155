// Layers that turn an image into a sequence (ops/image_tokens.h). `rows`: the batch's.
// Tests: tests/trainer/nn/image_layers_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_IMAGE_LAYERS_H_
#define FSDP_TRAIN_TRAINER_NN_IMAGE_LAYERS_H_

#include <cstdint>

#include "trainer/autograd/var.h"
#include "trainer/core/view.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/patch_order.h"

namespace fsdp {

class Tape;

// Images of a batch, fp32 [rows, height, width, channels], as [rows * patches, elements of a patch]
// in the tape's dtype of activations. They have no gradient, as FromBatch() (layers.h).
Var Patches(Tape& tape, const View& pixels, int64_t patch, PatchOrder order);

// x [rows * n, cols] -> [rows * (1 + n), cols], with `first` before each row's tokens and
// `positions` added. The parameters have cols and (1 + n) cols elements, in any shape.
Var JoinTokens(Tape& tape, const Var& x, const Parameter& first, const Parameter& positions,
               int64_t rows);

// Each row's first token: [rows, cols].
Var FirstTokens(Tape& tape, const Var& x, int64_t rows);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_IMAGE_LAYERS_H_
