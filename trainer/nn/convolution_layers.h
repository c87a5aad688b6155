// Layers of convolutional networks. Values are images [samples, height, width, channels].
// Tests: tests/trainer/nn/convolution_layers_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_CONVOLUTION_LAYERS_H_
#define FSDP_TRAIN_TRAINER_NN_CONVOLUTION_LAYERS_H_

#include "trainer/autograd/var.h"
#include "trainer/core/view.h"
#include "trainer/nn/buffer.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/convolution_shape.h"

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_CONVOLUTION_LAYERS_H_
