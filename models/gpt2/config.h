// The shape of a GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask
// Learners"): learned positions, pre-norm blocks, GELU (tanh), the head tied to the embedding
// or, as minGPT's, a matrix of its own.
// Tests: tests/models/gpt2/family_test.cc
#ifndef FSDP_TRAIN_MODELS_GPT2_CONFIG_H_
#define FSDP_TRAIN_MODELS_GPT2_CONFIG_H_

#include <cstdint>
#include <memory>

namespace fsdp {

class Model;
class ModelFamily;

// Names as in recipes. The defaults are the smallest published model.
struct Gpt2Config {
  int64_t hidden_size = 768;
  int64_t intermediate_size = 4 * hidden_size;  // Follows hidden_size where it is not given.
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t vocab_size = 50257;
  int64_t max_position_embeddings = 1024;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;  // Standard deviation of the initial weights.
  bool tie_word_embeddings = true;

  // No part of the shape: how it is trained. Shares of the elements of the embeddings' sum, of what
  // a block adds to the residual stream, and of the attention's probabilities, that are dropped
  // (Tape::recording()).
  double embedding_dropout = 0, residual_dropout = 0, attention_dropout = 0;

  int64_t head_dim() const {
    return num_attention_heads > 0 ? hidden_size / num_attention_heads : 0;
  }
  bool operator==(const Gpt2Config&) const = default;
};

const ModelFamily& FamilyOfConfig(const Gpt2Config& config);
std::shared_ptr<Model> MakeGpt2(const Gpt2Config& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_GPT2_CONFIG_H_
