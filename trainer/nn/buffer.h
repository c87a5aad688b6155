// State that a model accumulates over the batches that it was trained on: running statistics, a
// count, a tally, a bias that follows a tally. Every rank holds all of it. A buffer is no
// parameter: it has no gradient, no optimizer state and no average of its own, and no count of
// parameters includes it.
//
// Forward writes a buffer once per micro-batch of a training step; recomputes and evaluations do
// not write it. When the step ends, statistics become their mean over all ranks, and tallies their
// sum. A step that changes no weights (its loss or gradient is not finite) changes no buffer. So
// between steps all ranks hold one value, which evaluations read and checkpoints hold.
// Tests: tests/trainer/nn/buffer_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_BUFFER_H_
#define FSDP_TRAIN_TRAINER_NN_BUFFER_H_

#include <cstdint>
#include <string>

#include "trainer/core/view.h"

namespace fsdp {

class Parameter;
class Tape;

class ModelBuffer {
 public:
  enum class Kind {
    kStatistic,  // fp32. A step's forward begins with the value of the steps before.
    kCount,      // int64. Forward writes it alike on every rank, so counts are not averaged.
    kTally,      // fp32. A step's forward begins with zeros. No file of Hugging Face has it.
    kBias,       // fp32. Forward does not write it: it moves when the step ends (Follow()).
  };

  // A statistic or a count, by its dtype. `initial`: the value of every element before the first
  // step. Throws std::invalid_argument for another dtype, or a buffer without elements.
  ModelBuffer(std::string name, const Shape& shape, DType dtype, double initial);
  // fp32, zeros before the first step.
  ModelBuffer(std::string name, const Shape& shape, Kind kind);
  ModelBuffer(const ModelBuffer&) = delete;
  ModelBuffer& operator=(const ModelBuffer&) = delete;

  const std::string& name() const { return name_; }  // As in the Hugging Face file.
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Kind kind() const { return kind_; }
  double initial() const { return initial_; }

  // For a bias. When a step ends, it moves by the run's rate towards equal loads
  // (MoveBias(), ops/running_statistics.h), as long as `router` trains. The loads are the first
  // elements of `tally`, as many as the bias has.
  void Follow(const ModelBuffer& tally, const Parameter& router) {
    tally_ = &tally;
    router_ = &router;
  }
  const ModelBuffer* tally() const { return tally_; }
  const Parameter* router() const { return router_; }

  // For evaluation. FSDP_CHECKs that the tape is not a training step's: its recompute would see
  // another value than its forward saw.
  ConstView Read(const Tape& tape) const;
  // The value of the steps before, of a tally or a bias; training may read it, too.
  ConstView Before() const;
  // FSDP_CHECKs tape.writes_buffers().
  View Write(const Tape& tape) const;

  // For the executor, which calls it before each step. `before`: the value of the steps before.
  void Bind(const View& value, const View& before);

 private:
  const std::string name_;
  const Shape shape_;
  const DType dtype_;
  const Kind kind_;
  const double initial_;
  const ModelBuffer* tally_ = nullptr;
  const Parameter* router_ = nullptr;
  View value_, before_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_BUFFER_H_
