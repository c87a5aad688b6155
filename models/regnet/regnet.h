// RegNet (config.h): a forward pass, and the names of Hugging Face's RegNetForImageClassification.
// Tests: tests/models/regnet/reference_test.cc
#ifndef FSDP_TRAIN_MODELS_REGNET_REGNET_H_
#define FSDP_TRAIN_MODELS_REGNET_REGNET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/regnet/config.h"
#include "trainer/nn/image_layers.h"
#include "trainer/nn/model.h"

namespace fsdp {

class RegNet : public Model {
 public:
  // The shape is one that the family's Validate() finds nothing wrong with.
  explicit RegNet(const RegNetConfig& config);

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t length) const override;
  const EvalMetric* eval_metric() const override { return &kAccuracy; }
  int64_t fewest_normed_pixels() const override { return config_.LastSide() * config_.LastSide(); }
  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override;
  int64_t predictions() const override { return config_.num_labels; }
  void Predict(Tape& tape, const Batch& batch, View scores) const override;

 protected:
  // The last block's output for the images, [samples, side, side, channels].
  Var Hidden(Tape& tape, const Batch& batch) const;
  // In the head's segment: [samples, num_labels].
  Var Scores(Tape& tape, const Var& hidden) const;
  int HeadSegment() const { return static_cast<int>(segments_.size()) - 1; }

 private:
  struct ConvolutionNorm {
    Parameter* weight;
    ConvolutionWindow window;
    BatchNormed norm;
  };
  struct Affine {
    Parameter *weight, *bias;
  };
  struct Block {
    ConvolutionNorm narrow, grouped, wide;
    std::optional<Affine> squeeze, excite;
    std::optional<ConvolutionNorm> shortcut;
  };

  Parameter* New(const std::string& name, const Shape& shape, Init init, bool decay);
  ModelBuffer* NewBuffer(const std::string& name, const Shape& shape, DType dtype, double initial);
  ConvolutionNorm NewConvolution(const std::string& name, int64_t in, int64_t out, int64_t kernel,
                                 const ConvolutionWindow& window);
  Affine NewLinear(const std::string& name, const Shape& weight, double variance);
  void AddBlock(size_t stage, int64_t index);
  // Adds a segment of the parameters and buffers made since the last segment.
  void AddSegment(const std::string& name, bool is_block);

  static Var Convolve(Tape& tape, const Var& x, const ConvolutionNorm& layer, const View& weights,
                      bool relu, bool returned = false);
  static Var RunBlock(Tape& tape, const Var& x, const Block& block, const View& weights);

  const RegNetConfig config_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<ModelBuffer>> buffers_;
  size_t listed_parameters_ = 0, listed_buffers_ = 0;  // In segments.
  ConvolutionNorm stem_;
  std::vector<Block> blocks_;
  Affine head_;
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_REGNET_REGNET_H_
