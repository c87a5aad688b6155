// ViT (config.h): a forward pass, and the names of Hugging Face's ViTForImageClassification or of
// vit-pytorch's DeepViT. Matrices are [out, in], as in their files; q, k and v are slices of one.
// Tests: tests/models/vit/reference_test.cc
#ifndef FSDP_TRAIN_MODELS_VIT_VIT_H_
#define FSDP_TRAIN_MODELS_VIT_VIT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/vit/config.h"
#include "trainer/autograd/var.h"
#include "trainer/nn/model.h"

namespace fsdp {

class Vit : public Model {
 public:
  // The shape is one that the family's Validate() finds nothing wrong with.
  explicit Vit(const VitConfig& config);

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t length) const override;
  const EvalMetric* eval_metric() const override { return &kAccuracy; }
  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override;
  int64_t predictions() const override { return config_.num_labels; }
  void Predict(Tape& tape, const Batch& batch, View scores) const override;

 protected:
  // The last block's output for the images, [rows * (1 + patches), hidden_size].
  Var Hidden(Tape& tape, const Batch& batch) const;
  // In the head's segment: [rows, num_labels].
  Var Scores(Tape& tape, const Var& hidden, int64_t rows) const;
  int HeadSegment() const { return static_cast<int>(segments_.size()) - 1; }

 private:
  struct Affine {
    Parameter *weight, *bias;  // `bias` may be null.
  };
  struct Layer {
    Affine attention_norm, qkv;
    Parameter* mix;  // Null without re-attention, as is all of `mix_norm`.
    Affine mix_norm;
    Affine out, mlp_norm, up, down;
  };

  Parameter* New(const std::string& name, const Shape& shape, Init init, bool decay);
  Affine NewNorm(const std::string& name, int64_t width);
  // `weight`: [out, ...], all of it by name + ".weight" and ".bias".
  Affine NewLinear(const std::string& name, const Shape& weight);
  Affine NewQkv(const std::string& prefix);
  Layer NewLayer(int64_t index);
  void AddLayer(int64_t index);

  Var Attention(Tape& tape, const Var& x, const View& keys, size_t layer, bool train) const;
  Var Mlp(Tape& tape, const Var& x, const View& keys, size_t layer, bool train) const;
  Var Norm(Tape& tape, const Var& x, const Affine& norm) const;

  const VitConfig config_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  Parameter *first_, *positions_;
  Affine projection_, norm_, head_;
  std::vector<Layer> layers_;
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_VIT_VIT_H_
