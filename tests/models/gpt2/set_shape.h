// GPT-2's config.json, as Hugging Face writes it, of the fixtures.
#ifndef FSDP_TRAIN_TESTS_MODELS_GPT2_SET_SHAPE_H_
#define FSDP_TRAIN_TESTS_MODELS_GPT2_SET_SHAPE_H_

#include <cstdint>

#include "models/gpt2/config.h"
#include "tests/testing/json.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {

inline void SetGpt2Shape(const testing::Json& c, TinyRun& run) {
  Gpt2Config& config = run.config;
  config.hidden_size = c.at("n_embd");
  config.intermediate_size =
      c.at("n_inner").is_null() ? 4 * config.hidden_size : c.at("n_inner").get<int64_t>();
  config.num_hidden_layers = c.at("n_layer");
  config.num_attention_heads = c.at("n_head");
  config.vocab_size = c.at("vocab_size");
  config.max_position_embeddings = c.at("n_positions");
  config.layer_norm_epsilon = c.at("layer_norm_epsilon");
  config.tie_word_embeddings = c.at("tie_word_embeddings");
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_MODELS_GPT2_SET_SHAPE_H_
