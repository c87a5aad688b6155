// The interface between the trainer and a model: segments with their parameters, and a forward pass
// in plain C++ that says which segment it is in (Tape::Segment). A model knows shapes, not ranks or
// files.
// Tests: tests/trainer/nn/gradient_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_MODEL_H_
#define FSDP_TRAIN_TRAINER_NN_MODEL_H_

#include <string>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/nn/buffer.h"
#include "trainer/nn/eval_metric.h"
#include "trainer/nn/parameter.h"
#include "trainer/nn/table.h"
#include "trainer/ops/weight_layout.h"

namespace fsdp {

class Tape;

// The segments are in forward order; a forward pass enters each once. A parameter that several
// segments use is in memory in all of them, but listed once. Either the segment that lists it is
// neither a block nor a unit of its own, or the others name it in `reads`.
struct ModelSegment {
  std::string name;  // The common prefix of its parameters' names.
  bool is_block = false;
  std::vector<Parameter*> parameters;
  // Makes the segment a unit of its own, gathered and freed like a block, unless the recipe leaves
  // it in the root. For an untied embedding.
  bool own_unit = false;
  // Whether its backward reads its parameters. An embedding's does not: it only adds to gradients.
  bool read_in_backward = true;
  std::vector<Parameter*> reads = {};  // Parameters that other segments list.
  std::vector<ModelBuffer*> buffers = {};
  // The number of batch norms whose statistics may be those of all ranks (train.batch_norm). Each
  // pass over the segment runs all of them.
  int batch_norms = 0;
  // False: what its backward needs is kept by a later segment (Tape::Keep()), so that nothing of it
  // is offloaded.
  bool keeps = true;
};

// For models that generate text, one element after the other: scores of the next element.
class Autoregressive {
 public:
  virtual ~Autoregressive() = default;

  // Writes scores [rows, outputs()] of the elements that may follow position `column` of each row.
  // The tape must not record.
  virtual void Logits(Tape& tape, const Batch& batch, int64_t column, View logits) const = 0;
  virtual int64_t outputs() const = 0;        // The vocabulary's size.
  virtual int64_t max_positions() const = 0;  // The longest sequence.
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const std::vector<ModelSegment>& segments() const = 0;

  // The inputs of the model. `length`: of a sample, where the data decides it (data.seq_len).
  virtual BatchSpec Inputs(int64_t length) const = 0;

  // Adds scale * the sum of the targets' losses, each times its weight, to loss [1]. On a tape that
  // records, the loss is written by Backward(), whose gradients are those of that sum. In an
  // evaluation whose eval_metric() has a second sum, loss is [2], and that sum is added to loss[1]
  // without `scale`.
  virtual void Loss(Tape& tape, const Batch& batch, float scale, View loss) const = 0;

  // Numbers that tell what a sample is: a logit for each class, or one, that of label 1. 0: the
  // model judges no sample as a whole. Writes them, fp32 [rows, predictions()]; the tape must not
  // record.
  virtual int64_t predictions() const { return 0; }
  virtual void Predict(Tape&, const Batch&, View) const {}

  // The number that an evaluation reports beside the loss. Null: none.
  virtual const EvalMetric* eval_metric() const { return nullptr; }
  // Null: the model generates nothing.
  virtual const Autoregressive* autoregressive() const { return nullptr; }

  // The model's embedding tables. Its first segment reads their rows through PooledVectors().
  virtual std::vector<EmbeddingTable> tables() const { return {}; }
  // Pixels of a sample in the smallest batch norm; 0: there is none.
  virtual int64_t fewest_normed_pixels() const { return 0; }

  // The layout of the weights of all its linear layers.
  virtual WeightLayout linear_layout() const { return WeightLayout::kOutIn; }
};

// All buffers of a model, in the order of its segments.
inline std::vector<ModelBuffer*> BuffersOf(const Model& model) {
  std::vector<ModelBuffer*> buffers;
  for (const ModelSegment& segment : model.segments()) {
    buffers.insert(buffers.end(), segment.buffers.begin(), segment.buffers.end());
  }
  return buffers;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_MODEL_H_
