// T5 (config.h): a forward pass, and the names of Hugging Face's T5ForConditionalGeneration.
// Matrices are [out, in], as in its files; q, k and v of a self-attention are slices of one, k and
// v of a cross-attention of another, and so are the gate and the value of a gated MLP.
//
// The decoder's token t predicts target t (pair_batch.h). Both tables of biases and the embedding
// are the root's: every block of a stack reads its table. Tests: tests/models/t5/reference_test.cc
#ifndef FSDP_TRAIN_MODELS_T5_T5_H_
#define FSDP_TRAIN_MODELS_T5_T5_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/t5/config.h"
#include "trainer/autograd/var.h"
#include "trainer/data/pairs/pair_batch.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/nn/model.h"

namespace fsdp {

class T5 final : public Model, public Autoregressive {
 public:
  // The shape is one that the family's Validate() finds nothing wrong with.
  explicit T5(const T5Config& config);

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t length) const override;
  const EvalMetric* eval_metric() const override { return &kPerplexity; }
  const Autoregressive* autoregressive() const override { return this; }
  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override;
  // The batch's tokens of the decoder follow those that a cache has seen. The encoder does not run
  // where the cache has what layers ask for of the encoder's output.
  void Logits(Tape& tape, const Batch& batch, int64_t column, View logits) const override;
  int64_t outputs() const override { return config_.vocab_size; }
  int64_t max_positions() const override;

 private:
  struct Block {
    Parameter *attention_norm, *qkv, *o;
    Parameter *cross_norm, *q, *kv, *cross_o;  // Null in an encoder.
    Parameter *mlp_norm, *wi, *wo;
  };
  struct Stack {
    std::string name;
    bool bidirectional = true;
    int segment = 0;                              // Its embedding; its blocks are those behind it.
    uint32_t first_site = 0;                      // Its dropouts begin there.
    size_t first_layer = 0;                       // Its attentions begin there.
    Parameter *table = nullptr, *norm = nullptr;  // table: [buckets, heads].
    std::vector<Block> blocks = {};
  };
  // Beside the parameters, the same in every block of a stack.
  struct Aids {
    TensorPtr identity;  // [heads, heads]: a product with it transposes the table.
    TensorPtr buckets;   // By distance from query to key.
  };

  struct Rows {
    std::string name;  // Without ".weight".
    int64_t rows;
    double stddev;
  };
  Parameter* Add(std::unique_ptr<Parameter> parameter);
  Parameter* NewNorm(const std::string& name);
  Parameter* NewMatrix(const std::string& name, const std::vector<Rows>& slices, int64_t in);
  Block NewBlock(const std::string& prefix, bool crosses);
  // Segments of the blocks.
  void AddBlocks(Stack& stack, int64_t layers);

  Aids AidsOf(Tape& tape, const Stack& stack, int64_t length) const;
  // The embedded tokens of a stack. Sets its aids.
  Var Embedded(Tape& tape, const Stack& stack, const TokenBatch& tokens, bool train,
               Aids& aids) const;
  // A layer's branches, one after the other. `encoded` is nothing in an encoder.
  Var RunBlock(Tape& tape, const Var& x, const Var& encoded, const PairBatch& fed,
               const Stack& stack, size_t layer, const Aids& aids, bool train) const;
  Var FinalNorm(Tape& tape, const Var& x, const Stack& stack, const View& keys, bool train) const;
  Var Encoded(Tape& tape, const PairBatch& fed, bool train) const;
  // Enters the encoder's segments, and runs nothing.
  void PassEncoder(Tape& tape) const;
  Var Decoded(Tape& tape, const PairBatch& fed, const Var& encoded, bool train) const;
  // Turns the output of the decoder's last block into the head's input.
  Var ForHead(Tape& tape, const Var& x, const PairBatch& fed, bool train) const;
  int HeadSegment() const { return static_cast<int>(segments_.size()) - 1; }

  T5Config config_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  Parameter *shared_, *head_;  // `head_` is the embedding where they are tied.
  Stack encoder_{.name = "encoder"}, decoder_{.name = "decoder", .bidirectional = false};
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_T5_T5_H_
