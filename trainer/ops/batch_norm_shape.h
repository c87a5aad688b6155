// The sizes of a batch norm (batch_norm.h), as kernels of all devices use them.
// Tests: tests/trainer/ops/batch_norm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_SHAPE_H_
#define FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_SHAPE_H_

#include <cstdint>

namespace fsdp {

struct BatchNormShape {
  int64_t samples, pixels, channels;  // Pixels of a sample.

  static constexpr int64_t kPiece = 256;  // Pixels, at most.

  int64_t rows() const { return samples * pixels; }
  int64_t pieces_of_sample() const { return (pixels + kPiece - 1) / kPiece; }
  int64_t pieces() const { return samples * pieces_of_sample(); }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_BATCH_NORM_SHAPE_H_
