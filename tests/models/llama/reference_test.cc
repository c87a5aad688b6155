// Our Llama against Hugging Face's Llama, Mistral, Qwen2 and Qwen3 in float64: what
// tools/reference/README.md describes, held to the rule that stands there, at worlds of 1, 2, 3 and
// 5, on threads and on processes.
#include "tests/testing/reference.h"

#include <gtest/gtest.h>

#include <string>

#include "models/llama/config.h"
#include "tests/testing/precision.h"

namespace fsdp::testing {
namespace {

using nlohmann::json;

RopeScaling Scaling(const json& rope) {
  RopeScaling scaling;
  const std::string type = rope.at("rope_type");
  constexpr auto kNames = NamesOf(RopeScaling::Type{});
  size_t index = 0;
  while (kNames.at(index) != type) ++index;
  scaling.type = static_cast<RopeScaling::Type>(index);
  VisitFields(scaling, [&](const char* name, auto& field) {
    using T = typename std::remove_reference_t<decltype(field)>::value_type;
    if (rope.contains(name)) field = rope.at(name).get<T>();
  });
  return scaling;
}

void SetShape(const json& c, TinyRun& run) {
  LlamaConfig config;
  config.hidden_size = c.at("hidden_size");
  config.intermediate_size = c.at("intermediate_size");
  config.num_hidden_layers = c.at("num_hidden_layers");
  config.num_attention_heads = c.at("num_attention_heads");
  config.num_key_value_heads = c.at("num_key_value_heads");
  config.head_dim = c.at("head_dim");
  config.vocab_size = c.at("vocab_size");
  config.max_position_embeddings = c.at("max_position_embeddings");
  config.rms_norm_eps = c.at("rms_norm_eps");
  config.rope_theta = c.at("rope_parameters").at("rope_theta");
  config.rope_scaling = Scaling(c.at("rope_parameters"));
  config.tie_word_embeddings = c.at("tie_word_embeddings");
  const std::string type = c.at("model_type");
  const bool bias = c.value("attention_bias", false);  // Qwen2's is no setting.
  config.attention_bias = bias || type == "qwen2";
  config.attention_output_bias = bias;
  config.mlp_bias = c.value("mlp_bias", false);
  config.qk_norm = type == "qwen3";
  run.llama = config;
}

class ReferenceTest : public ReferenceSuite {
 protected:
  ReferenceTest() : ReferenceSuite("llama", SetShape) {}
};

TEST_P(ReferenceTest, LogitsLossAndGradients) { HoldBatch(); }
TEST_P(ReferenceTest, TwentySteps) { HoldTrainings(); }

const auto kModels = ::testing::Values("llama_6_2", "llama_biases", "qwen2_8_1", "qwen3_documents",
                                       "mistral_dynamic");
const auto kFullShard = ::testing::Values(Strategy::kFullShard);

INSTANTIATE_TEST_SUITE_P(Alone, ReferenceTest,
                         ::testing::Combine(kModels, ::testing::Values(1), kFullShard,
                                            ::testing::Values(false)),
                         ReferenceCaseName);
// AddressSanitizer takes ten times as long and learns nothing from more worlds.
#ifdef __SANITIZE_ADDRESS__
INSTANTIATE_TEST_SUITE_P(Threads, ReferenceTest,
                         ::testing::Combine(kModels, ::testing::Values(3), kFullShard,
                                            ::testing::Values(false)),
                         ReferenceCaseName);
#else
INSTANTIATE_TEST_SUITE_P(Threads, ReferenceTest,
                         ::testing::Combine(kModels, ::testing::Values(2, 3, 5), kFullShard,
                                            ::testing::Values(false)),
                         ReferenceCaseName);
INSTANTIATE_TEST_SUITE_P(Strategies, ReferenceTest,
                         ::testing::Combine(kModels, ::testing::Values(3),
                                            ::testing::Values(Strategy::kShardGradOp,
                                                              Strategy::kNoShard),
                                            ::testing::Values(false)),
                         ReferenceCaseName);
#endif
INSTANTIATE_TEST_SUITE_P(Processes, ReferenceTest,
                         ::testing::Combine(kModels, ::testing::Values(2), kFullShard,
                                            ::testing::Values(true)),
                         ReferenceCaseName);

// Beside PyTorch's FSDP, whose gradients are of param_dtype until they are reduced.
class PrecisionTest : public PrecisionSuite {
 protected:
  PrecisionTest() : PrecisionSuite("tests/fixtures/llama/llama_6_2", SetShape) {}
};

TEST_P(PrecisionTest, ErrorsAreAtMostTwicePyTorchs) { Hold(); }

INSTANTIATE_TEST_SUITE_P(BFloat16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kBFloat16)),
                         WayName);
INSTANTIATE_TEST_SUITE_P(Float16, PrecisionTest, ::testing::ValuesIn(WaysOf(DType::kFloat16)),
                         WayName);

}  // namespace
}  // namespace fsdp::testing
