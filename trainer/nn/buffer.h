// State that a model accumulates over the batches that it was trained on: running statistics, a
// count. Every rank holds all of it. A buffer is no parameter: it has no gradient, no optimizer
// state and no average of its own, and no count of parameters includes it.
//
// Forward writes a buffer once per micro-batch of a training step; recomputes and evaluations do
// not write it. When the step ends, statistics become their mean over all ranks. A step that
// changes no weights (its loss or gradient is not finite) changes no buffer. So between steps all
// ranks hold one value, which evaluations read and checkpoints hold.
// Tests: tests/trainer/nn/buffer_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_BUFFER_H_
#define FSDP_TRAIN_TRAINER_NN_BUFFER_H_

#include <cstdint>
#include <string>

#include "trainer/core/view.h"

namespace fsdp {

class Tape;

class ModelBuffer {
 public:
  // A statistic is fp32. A count is int64; forward writes it alike on every rank, so counts are not
  // averaged. `initial`: the value of every element before the first step. Throws
  // std::invalid_argument for another dtype, or a buffer without elements.
  ModelBuffer(std::string name, const Shape& shape, DType dtype, double initial);
  ModelBuffer(const ModelBuffer&) = delete;
  ModelBuffer& operator=(const ModelBuffer&) = delete;

  const std::string& name() const { return name_; }  // As in the Hugging Face file.
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  double initial() const { return initial_; }

  // For evaluation. FSDP_CHECKs that the tape is not a training step's: its recompute would see
  // another value than its forward saw.
  ConstView Read(const Tape& tape) const;
  // FSDP_CHECKs tape.writes_buffers().
  View Write(const Tape& tape) const;

  // For the executor, which calls it before each step.
  void Bind(const View& value);

 private:
  const std::string name_;
  const Shape shape_;
  const DType dtype_;
  const double initial_;
  View value_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_BUFFER_H_
