// What the trainer asks of a model: segments with their parameters, and a forward pass in plain C++
// that says which segment it is in (Tape::Segment). A model knows shapes, not ranks or files.
// Tests: tests/trainer/nn/gradient_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_MODEL_H_
#define FSDP_TRAIN_TRAINER_NN_MODEL_H_

#include <string>
#include <vector>

#include "trainer/autograd/tape.h"
#include "trainer/core/batch.h"
#include "trainer/nn/buffer.h"
#include "trainer/nn/eval_metric.h"
#include "trainer/nn/parameter.h"
#include "trainer/nn/table.h"
#include "trainer/ops/linear.h"

namespace fsdp {

// The segments are in forward order, each entered once in a forward pass. A parameter that several
// segments use is listed once: in one that is neither a block nor a unit of its own, or with
// `reads` in the others. It is in memory in all of them.
struct ModelSegment {
  std::string name;  // The common prefix of its parameters' names.
  bool is_block = false;
  std::vector<Parameter*> parameters;
  // Where blocks are gathered and freed, it is too, unless the recipe leaves it in the root: an
  // untied embedding.
  bool own_unit = false;
  // Its backward reads its parameters. False: rows are looked up, gradients added.
  bool read_in_backward = true;
  std::vector<Parameter*> reads = {};  // Of those that other segments list.
  std::vector<ModelBuffer*> buffers = {};
  // Batch norms, whose statistics may be those of all ranks: train.batch_norm. As many in each pass
  // over the segment.
  int batch_norms = 0;
};

// What follows a sequence: of models that text is generated from, one element after the other.
class Autoregressive {
 public:
  virtual ~Autoregressive() = default;

  // Scores [rows, outputs()] of what may follow position `column` of each row. The tape must not
  // record.
  virtual void Logits(Tape& tape, const Batch& batch, int64_t column, View logits) const = 0;
  virtual int64_t outputs() const = 0;        // The vocabulary's size.
  virtual int64_t max_positions() const = 0;  // Of a sequence.
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const std::vector<ModelSegment>& segments() const = 0;

  // What it is fed. `length`: of a sample, where that is the data's to say (data.seq_len).
  virtual BatchSpec Inputs(int64_t length) const = 0;

  // Adds scale * the sum of the targets' losses, each times its weight, to loss [1]. On a tape that
  // records, the loss is there after Backward(), whose gradients are those of that sum. In an
  // evaluation of an eval_metric() with a second sum, loss is [2]: that sum, not times scale, is
  // added to loss[1].
  virtual void Loss(Tape& tape, const Batch& batch, float scale, View loss) const = 0;

  // What an evaluation tells beside the loss. Null: nothing.
  virtual const EvalMetric* eval_metric() const { return nullptr; }
  // Null: nothing can be generated from it.
  virtual const Autoregressive* autoregressive() const { return nullptr; }

  // Its embedding tables, whose rows its first segment reads by PooledVectors().
  virtual std::vector<EmbeddingTable> tables() const { return {}; }
  // Pixels of a sample in the smallest batch norm; 0: there is none.
  virtual int64_t fewest_normed_pixels() const { return 0; }

  // How the weights of all its linear layers lie.
  virtual WeightLayout linear_layout() const { return WeightLayout::kOutIn; }
};

// In the order of its segments.
inline std::vector<ModelBuffer*> BuffersOf(const Model& model) {
  std::vector<ModelBuffer*> buffers;
  for (const ModelSegment& segment : model.segments()) {
    buffers.insert(buffers.end(), segment.buffers.begin(), segment.buffers.end());
  }
  return buffers;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_MODEL_H_
