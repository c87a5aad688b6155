// Llama and its relatives (config.h): a forward pass, and the names of Hugging Face's
// LlamaForCausalLM, which Mistral, Qwen2 and Qwen3 share. Matrices are [out, in], as in its files;
// q, k and v are slices of one, gate and up of another.
#ifndef FSDP_TRAIN_MODELS_LLAMA_LLAMA_H_
#define FSDP_TRAIN_MODELS_LLAMA_LLAMA_H_

#include <memory>
#include <string>
#include <vector>

#include "models/llama/config.h"
#include "trainer/autograd/var.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/nn/model.h"

namespace fsdp {

class Llama final : public Model, public Autoregressive {
 public:
  // The shape is one that the family's Validate() finds nothing wrong with.
  explicit Llama(const LlamaConfig& config);

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t length) const override {
    return TokenInputs(length, config_.vocab_size);
  }
  const EvalMetric* eval_metric() const override { return &kPerplexity; }
  const Autoregressive* autoregressive() const override { return this; }
  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override;
  void Logits(Tape& tape, const Batch& batch, int64_t column, View logits) const override;
  int64_t outputs() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.max_positions(); }

 private:
  struct Block {
    Parameter *attention_norm, *qkv_w, *qkv_b, *q_norm, *k_norm, *o_w, *o_b;
    Parameter *mlp_norm, *gate_up_w, *gate_up_b, *down_w, *down_b;  // Biases and norms may be null.
  };

  // A vector of one value: a norm's weight.
  Parameter* NewNorm(const std::string& name, int64_t size);
  // `slices`: names without ".weight" or ".bias", and their rows. NewBias() returns null unless
  // `there`.
  struct Rows {
    std::string name;
    int64_t rows;
  };
  Parameter* NewMatrix(const std::string& name, const std::vector<Rows>& slices, int64_t in);
  Parameter* NewBias(const std::string& name, const std::vector<Rows>& slices, bool there);
  Parameter* Add(std::unique_ptr<Parameter> parameter);
  Block NewBlock(const std::string& prefix);

  Var Hidden(Tape& tape, const TokenBatch& batch) const;  // Before the final norm.
  // `train`: dropout acts.
  Var RunBlock(Tape& tape, const Var& x, const TokenBatch& batch, size_t layer, bool train,
               const TensorPtr& rope_table) const;
  Var FinalNorm(Tape& tape, const Var& x) const;
  int HeadSegment() const { return static_cast<int>(segments_.size()) - 1; }

  LlamaConfig config_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  Parameter *embedding_, *norm_, *head_;  // `head_` is the embedding where they are tied.
  std::vector<Block> blocks_;
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_LLAMA_LLAMA_H_
