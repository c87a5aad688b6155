// A decoder of pre-norm blocks with rotary attention: all of Llama's forward pass (config.h) but
// what a block does behind its second norm, which a subclass adds. The names are those of Hugging
// Face's LlamaForCausalLM, which Mistral, Qwen2 and Qwen3 share. Matrices are [out, in], as in its
// files; q, k and v are slices of one, gate and up of another.
// Tests: tests/models/llama/llama_test.cc
#ifndef FSDP_TRAIN_MODELS_LLAMA_DECODER_H_
#define FSDP_TRAIN_MODELS_LLAMA_DECODER_H_

#include <any>
#include <memory>
#include <string>
#include <vector>

#include "models/llama/config.h"
#include "trainer/autograd/var.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/nn/model.h"

namespace fsdp {

class Decoder : public Model, public Autoregressive {
 public:
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

 protected:
  // A gated MLP. Biases may be null.
  struct Mlp {
    Parameter *gate_up_w, *gate_up_b, *down_w, *down_b;
  };
  // A forward pass, which lives as long as a block may need it. `own`: BeginPass()'s.
  struct Pass {
    const TokenBatch batch;
    const bool train = false;  // Dropout acts.
    TensorPtr rope_table = nullptr;
    std::any own = {};
  };
  using PassPtr = std::shared_ptr<const Pass>;
  // Rows of a matrix or a vector that are a tensor of their own in files: its name without
  // ".weight" or ".bias".
  struct Rows {
    std::string name;
    int64_t rows;
  };

  // The shape is one that the family's Validate() finds nothing wrong with. The subclass's
  // constructor calls Build(), which makes all parameters and segments.
  // `norm_all_heads`: one norm over all heads of q, and one over all of k.
  explicit Decoder(const LlamaConfig& config, bool norm_all_heads = false)
      : config_(config), norm_all_heads_(norm_all_heads) {}
  void Build();

  // Makes the parameters behind the second norm of block `layer`, whose names begin with `prefix`.
  // It may call EndSegment() for those that it has made, and go on in another segment.
  virtual void AddMlp(int64_t layer, const std::string& prefix) = 0;
  // Returns x + what these parameters make of `normed`, the second norm of x.
  virtual Var RunMlp(Tape& tape, const Var& normed, const Var& x, const Pass& pass,
                     int64_t layer) const = 0;
  // Runs block `layer`, by default as one segment: `segment`, which is set to the one behind.
  virtual Var RunBlock(Tape& tape, const Var& x, const PassPtr& pass, int64_t layer,
                       int& segment) const;
  // Makes the things that all blocks of a micro-batch share; called in the first segment, on its
  // tape. `scale`: Model::Loss's.
  virtual std::any BeginPass(Tape&, const TokenBatch&, float /*scale*/) const { return {}; }

  Mlp NewMlp(const std::string& prefix, int64_t inner);
  static Var RunMlp(Tape& tape, const Mlp& mlp, const Var& normed, const Var& x);

  // A vector of one value: a norm's weight.
  Parameter* NewNorm(const std::string& name, int64_t size);
  // `name` is for the layout. NewBias() returns null unless `there`.
  Parameter* NewMatrix(const std::string& name, const std::vector<Rows>& slices, int64_t in);
  Parameter* NewBias(const std::string& name, const std::vector<Rows>& slices, bool there);

  static constexpr WeightLayout kLayout = WeightLayout::kOutIn;
  const LlamaConfig config_;

  // In AddMlp().
  void AddBuffer(ModelBuffer* buffer) { new_buffers_.push_back(buffer); }
  void EndSegment(const std::string& name, bool keeps = true);

  // In a block's segments: x behind attention, and its second norm.
  Var Attend(Tape& tape, const Var& x, const Pass& pass, int64_t layer) const;
  Var SecondNorm(Tape& tape, const Var& x, int64_t layer) const;

 private:
  struct Block {
    Parameter *attention_norm, *qkv_w, *qkv_b, *q_norm, *k_norm, *o_w, *o_b;
    Parameter* mlp_norm;  // Biases and norms of heads may be null.
  };

  Parameter* Add(std::unique_ptr<Parameter> parameter);
  Block NewAttention(const std::string& prefix);
  Parameter* NewHeadNorm(const std::string& name, int64_t heads);

  Var Hidden(Tape& tape, const TokenBatch& batch, float scale) const;  // Before the final norm.
  Var FinalNorm(Tape& tape, const Var& x) const;
  int HeadSegment() const { return static_cast<int>(segments_.size()) - 1; }

  std::vector<std::unique_ptr<Parameter>> parameters_;
  Parameter *embedding_ = nullptr, *norm_ = nullptr;
  Parameter* head_ = nullptr;  // The embedding where they are tied.
  const bool norm_all_heads_;
  std::vector<Block> blocks_;
  std::vector<Parameter*> new_parameters_;  // Since the last segment.
  std::vector<ModelBuffer*> new_buffers_;
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_LLAMA_DECODER_H_
