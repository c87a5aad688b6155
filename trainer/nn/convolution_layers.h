// Layers of convolutional networks. Values are images [samples, height, width, channels].
// Tests: tests/trainer/nn/convolution_layers_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_CONVOLUTION_LAYERS_H_
#define FSDP_TRAIN_TRAINER_NN_CONVOLUTION_LAYERS_H_

#include "trainer/autograd/tape.h"
#include "trainer/core/view.h"
#include "trainer/nn/buffer.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/convolution_shape.h"

namespace fsdp {

// Images of a batch, fp32 [samples, height, width, channels], in the tape's dtype of activations.
// Without a gradient, which Convolution then does not compute; nobody else may read it.
Var Pixels(Tape& tape, const View& images);

// weight: [out, in / groups, height, width]. ops/convolution.h.
Var Convolution(Tape& tape, const Var& x, const Parameter& weight, const ConvolutionWindow& window);

// Of a batch norm (ops/batch_norm.h): [channels] each, but for the count.
struct BatchNormed {
  const Parameter *weight, *bias;
  const ModelBuffer *mean, *variance, *count;
  float eps, momentum;
};

// Over the samples whose `weights` [samples], fp32, are not 0: of this rank, or of all of
// SegmentHooks::batch_ranks(), which one sum over ranks in forward and one in backward make one.
// Training steps use the batch's own statistics, which are kept for a recompute, and add them to
// the running ones; evaluations use those. Cheap to make again, unless it is `returned`: what
// leaves its segment would be made again where the norm's parameters are not gathered.
Var BatchNorm(Tape& tape, const Var& x, const BatchNormed& norm, const View& weights, bool relu,
              bool returned = false);

// The mean over pixels: [samples, channels].
Var MeanPixels(Tape& tape, const Var& x);

// x [samples, height, width, channels] times f [samples, channels]. Cheap to make again.
Var ScaleChannels(Tape& tape, const Var& x, const Var& f);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_CONVOLUTION_LAYERS_H_
