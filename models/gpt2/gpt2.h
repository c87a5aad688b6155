// GPT-2 (Radford et al. 2019): a forward pass, and the names of Hugging Face's GPT2LMHeadModel.
// Matrices are [in, out], as in its files (Conv1D); the head is the token embedding.
// Tests: tests/e2e/golden_test.cc
#ifndef FSDP_TRAIN_MODELS_GPT2_GPT2_H_
#define FSDP_TRAIN_MODELS_GPT2_GPT2_H_

#include <memory>
#include <vector>

#include "models/gpt2/config.h"
#include "trainer/autograd/var.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/nn/model.h"

namespace fsdp {

class Gpt2 final : public Model, public Autoregressive {
 public:
  // The shape is one that the family's Validate() finds nothing wrong with.
  explicit Gpt2(const Gpt2Config& config);

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t length) const override {
    return TokenInputs(length, config_.vocab_size);
  }
  const EvalMetric* eval_metric() const override { return &kPerplexity; }
  const Autoregressive* autoregressive() const override { return this; }
  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override;
  void Logits(Tape& tape, const Batch& batch, int64_t column, View logits) const override;
  WeightLayout linear_layout() const override { return WeightLayout::kInOut; }
  int64_t outputs() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.max_position_embeddings; }

 private:
  struct Block {
    Parameter *ln_1_w, *ln_1_b, *qkv_w, *qkv_b, *attn_w, *attn_b;
    Parameter *ln_2_w, *ln_2_b, *fc_w, *fc_b, *proj_w, *proj_b;
  };

  Parameter* New(const std::string& name, const Shape& shape, Init init);
  Var Hidden(Tape& tape, const TokenBatch& batch) const;  // Before the final norm.
  // `train`: dropout acts.
  Var RunBlock(Tape& tape, const Var& x, const TokenBatch& batch, size_t layer, bool train) const;
  int HeadSegment() const { return static_cast<int>(segments_.size()) - 1; }

  Gpt2Config config_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  Parameter *wte_, *wpe_, *ln_f_w_, *ln_f_b_, *head_;  // `head_` is wte_ where they are tied.
  std::vector<Block> blocks_;
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_GPT2_GPT2_H_
