// The shape of a T5 (Raffel et al. 2020, arXiv:1910.10683) and of T5 v1.1: an encoder and a
// decoder, RMSNorm before each branch, attention without a scale, a table of biases by the distance
// from query to key for each of the two. v1.0 has ReLU and a head tied to the embedding, before
// which the decoder's output is scaled; v1.1 has a gated GELU and a head of its own.
// Tests: tests/models/t5/family_test.cc
#ifndef FSDP_TRAIN_MODELS_T5_CONFIG_H_
#define FSDP_TRAIN_MODELS_T5_CONFIG_H_

#include <cstdint>
#include <memory>

namespace fsdp {

class Model;
class ModelFamily;

// Names as in recipes. The defaults are the smallest published model.
struct T5Config {
  int64_t hidden_size = 512;
  int64_t intermediate_size = 4 * hidden_size;  // Follows hidden_size where it is not given.
  int64_t num_hidden_layers = 6;                // The encoder's.
  int64_t num_decoder_layers = num_hidden_layers;
  int64_t num_attention_heads = 8;
  int64_t head_dim = 64;
  int64_t vocab_size = 32128;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double rms_norm_eps = 1e-6;
  bool gated_mlp = false;  // Gated GELU in place of ReLU.
  bool tie_word_embeddings = true;
  bool scale_decoder_outputs = tie_word_embeddings;  // By hidden_size^-0.5, before the head.
  double initializer_factor = 1;                     // A factor of every standard deviation.

  // No part of the shape: how it is trained. Share of the elements of embeddings, branches, inner
  // activations, probabilities and outputs of both stacks that are dropped (Tape::recording()).
  double dropout_rate = 0;
  // No part of the shape either: tokens of a sample's target. 0: as many as of its input.
  int64_t target_length = 0;

  int64_t inner_size() const { return num_attention_heads * head_dim; }
  bool operator==(const T5Config&) const = default;
};

const ModelFamily& FamilyOfConfig(const T5Config& config);
std::shared_ptr<Model> MakeT5(const T5Config& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_T5_CONFIG_H_
