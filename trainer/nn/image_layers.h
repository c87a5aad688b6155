// Layers of convolutional networks, whose values are images [samples, height, width, channels], and
// layers that turn an image into a sequence (ops/image_tokens.h). `rows`: the batch's.
// Tests: tests/trainer/nn/image_layers_test.cc
// Tests: tests/trainer/nn/convolution_layers_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_IMAGE_LAYERS_H_
#define FSDP_TRAIN_TRAINER_NN_IMAGE_LAYERS_H_

#include <cstdint>

#include "trainer/autograd/var.h"
#include "trainer/core/view.h"
#include "trainer/nn/buffer.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/ops/patch_order.h"

namespace fsdp {

class Tape;

// Converts images of a batch, fp32 [samples, height, width, channels], to the tape's dtype of
// activations. They have no gradient, so Convolution does not compute one; no other layer may read
// them.
Var Pixels(Tape& tape, const View& images);

// weight: [out, in / groups, height, width]. ops/convolution.h.
Var Convolution(Tape& tape, const Var& x, const Parameter& weight, const ConvolutionWindow& window);

// The parts of a batch norm (ops/batch_norm.h): [channels] each, except the count.
struct BatchNormed {
  const Parameter *weight, *bias;
  const ModelBuffer *mean, *variance, *count;
  float eps, momentum;
};

// Batch norm over the samples whose `weights` [samples], fp32, are not 0: those of this rank, or
// those of all SegmentHooks::batch_ranks(), with one sum over ranks in forward and one in backward.
// Training steps use the batch's own statistics, keep them for a recompute, and add them to the
// running ones. Evaluations use the running ones. The output is cheap to make again, unless it is
// `returned`: an output that leaves its segment would be made again where the norm's parameters are
// not gathered.
Var BatchNorm(Tape& tape, const Var& x, const BatchNormed& norm, const View& weights, bool relu,
              bool returned = false);

// The mean over pixels: [samples, channels].
Var MeanPixels(Tape& tape, const Var& x);

// x [samples, height, width, channels] times f [samples, channels]. Cheap to make again.
Var ScaleChannels(Tape& tape, const Var& x, const Var& f);

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
