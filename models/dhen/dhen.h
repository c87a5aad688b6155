// DHEN (config.h): a forward pass. Matrices are [out, in].
// Tests: tests/models/dhen/reference_test.cc
#ifndef FSDP_TRAIN_MODELS_DHEN_DHEN_H_
#define FSDP_TRAIN_MODELS_DHEN_DHEN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/dhen/config.h"
#include "trainer/autograd/var.h"
#include "trainer/nn/model.h"
#include "trainer/nn/table.h"

namespace fsdp {

class Dhen : public Model {
 public:
  // The shape is one that the family's Validate() finds nothing wrong with.
  explicit Dhen(const DhenConfig& config);

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t length) const override;
  std::vector<EmbeddingTable> tables() const override;
  const EvalMetric* eval_metric() const override { return &kNormalizedEntropy; }
  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override;
  int64_t predictions() const override { return 1; }
  void Predict(Tape& tape, const Batch& batch, View scores) const override;

 protected:
  // The vectors of the columns of ids, [rows * tables, table_width], in the first segment.
  virtual Var Pooled(Tape& tape, const Batch& batch) const { return PooledVectors(tape, batch); }
  // The last block's output for a batch, [rows * num_vectors, table_width].
  Var Hidden(Tape& tape, const Batch& batch) const;
  // In the head's segment: a logit for each row, [rows, 1].
  Var Logit(Tape& tape, const Var& hidden) const;
  int HeadSegment() const { return static_cast<int>(segments_.size()) - 1; }

 private:
  struct Affine {
    Parameter *weight, *bias;  // `bias` may be null.
  };
  struct Layer {
    Affine linear, qkv, out, cross_down, cross_up, norm;
    Parameter *attention_mix, *convolution, *convolution_mix, *cross_mix, *dot;
    Parameter* shortcut;  // Null where a layer reads as many vectors as it makes.
  };

  Parameter* New(const std::string& name, const Shape& shape, Init init, bool decay);
  // [out, ...], from a normal distribution of the variance 1 / (3 x inputs), which is that of
  // torch.nn.Linear.
  Parameter* NewWeight(const std::string& name, const Shape& shape);
  Affine NewLinear(const std::string& name, int64_t out, int64_t in, bool bias = true);
  void AddLayer(int64_t index);

  Var Inside(Tape& tape, const Var& x, size_t layer, int64_t rows) const;

  const DhenConfig config_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  Affine dense_up_, dense_down_, head_up_, head_down_;
  std::vector<Layer> layers_;
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_DHEN_DHEN_H_
