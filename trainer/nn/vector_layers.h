// Layers of feature vectors (ops/feature_vectors.h). x [rows * n, width] holds n vectors for each
// of the batch's `rows` rows.
// Tests: tests/trainer/nn/vector_layers_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_VECTOR_LAYERS_H_
#define FSDP_TRAIN_TRAINER_NN_VECTOR_LAYERS_H_

#include <cstdint>

#include "trainer/autograd/var.h"
#include "trainer/nn/parameter.h"

namespace fsdp {

class Tape;

// Each row's vectors of a, then those of b: [rows * (n + m), width]. a has rows * n * width
// elements and b has rows * m * width, in any shape. Either may be an input without a gradient.
Var JoinVectors(Tape& tape, const Var& a, const Var& b, int64_t rows, int64_t width);

// Transposes each row's matrix, [rows * width, n], so that a linear layer mixes vectors. A second
// call transposes it back. Cheap to make again.
Var SwapVectors(Tape& tape, const Var& x, int64_t rows);

// The products of a row's pairs of vectors over sqrt(width): [rows, n (n - 1) / 2].
Var PairDots(Tape& tape, const Var& x, int64_t rows);

// a b, element by element, in the shape of a. b has the same number of elements.
Var Multiply(Tape& tape, const Var& a, const Var& b);

// A convolution along a row's vectors, with zeros beyond its ends (ops/convolution.h). Vector i of
// the result has `out` numbers: the sum over taps t of weight[:, :, t] times vector i + t - taps /
// 2.
// weight: [out, width, taps, 1], an odd number of taps. Result: [rows * n, out].
Var ConvolveVectors(Tape& tape, const Var& x, const Parameter& weight, int64_t rows);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_VECTOR_LAYERS_H_
