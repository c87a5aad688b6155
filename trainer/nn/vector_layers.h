// Layers of feature vectors (ops/feature_vectors.h): x [rows * n, width] are the n vectors of each
// of so many rows of a batch.
// Tests: tests/trainer/nn/vector_layers_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_VECTOR_LAYERS_H_
#define FSDP_TRAIN_TRAINER_NN_VECTOR_LAYERS_H_

#include <cstdint>

#include "trainer/autograd/tape.h"
#include "trainer/nn/parameter.h"

namespace fsdp {

// Each row's vectors of a, then those of b, which have rows * n * width and rows * m * width
// elements in any shape: [rows * (n + m), width]. Either may be an input without a gradient.
Var JoinVectors(Tape& tape, const Var& a, const Var& b, int64_t rows, int64_t width);

// Each row's matrix turned around, [rows * width, n]: a linear layer then mixes vectors. It is also
// the way back. Cheap to make again.
Var SwapVectors(Tape& tape, const Var& x, int64_t rows);

// The products of a row's pairs of vectors over sqrt(width): [rows, n (n - 1) / 2].
Var PairDots(Tape& tape, const Var& x, int64_t rows);

// a b, element by element, in the shape of a; b has as many elements.
Var Multiply(Tape& tape, const Var& a, const Var& b);

// A convolution along a row's vectors, zeros beyond its ends (ops/convolution.h): vector i of the
// result, of `out` numbers, is sum over taps t of weight[:, :, t] times vector i + t - taps / 2.
// weight: [out, width, taps, 1], an odd number of taps. Result: [rows * n, out].
Var ConvolveVectors(Tape& tape, const Var& x, const Parameter& weight, int64_t rows);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_VECTOR_LAYERS_H_
