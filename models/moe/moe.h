// A decoder with mixtures of experts in place of MLPs (config.h), but for its dense layers. Names
// are those of the relative in transformers that has such a shape (names.h); each layer's experts
// are slices of two matrices. Inputs are TokenInputs() with lengths.
// Tests: tests/models/moe/moe_test.cc
#ifndef FSDP_TRAIN_MODELS_MOE_MOE_H_
#define FSDP_TRAIN_MODELS_MOE_MOE_H_

#include <any>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/llama/decoder.h"
#include "models/moe/config.h"
#include "trainer/nn/experts.h"

namespace fsdp {

class Moe final : public Decoder {
 public:
  // The shape is one that the family's Validate() finds nothing wrong with.
  explicit Moe(const MoeConfig& config);

  BatchSpec Inputs(int64_t length) const override {
    return TokenInputs(length, moe_.vocab_size, /*lengths=*/true);
  }

 private:
  struct Layer {
    std::optional<Mlp> dense, shared;
    const Parameter* shared_gate = nullptr;
    ExpertLayer mixture;  // Without `dense`.
  };

  void AddMlp(int64_t layer, const std::string& prefix) override;
  void AddMixture(const std::string& prefix, Layer& layer);
  // Experts [begin, end) of the layer.
  ExpertWeights NewExperts(const std::string& prefix, int64_t begin, int64_t end);
  std::any BeginPass(Tape& tape, const TokenBatch& batch, float scale) const override;
  using Decoder::RunMlp;
  Var RunMlp(Tape& tape, const Var& normed, const Var& x, const Pass& pass,
             int64_t layer) const override;
  Var RunBlock(Tape& tape, const Var& x, const PassPtr& pass, int64_t layer,
               int& segment) const override;
  // `x` and what the layer's shared expert makes of `normed`.
  static Var RunShared(Tape& tape, const Var& normed, const Var& x, const Layer& layer);

  const MoeConfig moe_;
  std::vector<Layer> layers_;
  std::vector<std::unique_ptr<ModelBuffer>> buffers_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_MOE_MOE_H_
