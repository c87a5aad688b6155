#include "tests/models/t5/set_shape.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/shape.h"
#include "models/t5/config.h"
#include "tests/testing/fixture_rows.h"
#include "tests/testing/json.h"
#include "trainer/data/derived_inputs.h"
#include "trainer/nn/model.h"

namespace fsdp::testing {
namespace {

T5Config ConfigOf(const testing::Json& c) {
  T5Config config;
  config.hidden_size = c.at("d_model");
  config.intermediate_size = c.at("d_ff");
  config.num_hidden_layers = c.at("num_layers");
  config.num_decoder_layers = c.at("num_decoder_layers");
  config.num_attention_heads = c.at("num_heads");
  config.head_dim = c.at("d_kv");
  config.vocab_size = c.at("vocab_size");
  config.relative_attention_num_buckets = c.at("relative_attention_num_buckets");
  config.relative_attention_max_distance = c.at("relative_attention_max_distance");
  config.rms_norm_eps = c.at("layer_norm_epsilon");
  config.gated_mlp = c.at("feed_forward_proj") == "gated-gelu";
  config.tie_word_embeddings = c.at("case").at("tied");
  config.scale_decoder_outputs = c.at("scale_decoder_outputs");
  config.target_length = c.at("case").at("sequence");
  return config;
}

class PairRows final : public FixtureRows {
 public:
  PairRows(const BatchSpec& spec, std::vector<int32_t> tokens, std::vector<float> weights)
      : FixtureRows(spec.inputs[0].sample[0] + spec.targets + 2, spec.targets, std::move(tokens),
                    std::move(weights)),
        spec_(spec),
        input_(spec.inputs[0].sample[0]),
        target_(spec.targets) {}

  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    const auto to = [&](size_t input, int64_t n) {
      return out.inputs[input].As<int32_t>() + row * n;
    };
    std::fill_n(to(0, input_), input_, 0);
    std::fill_n(to(1, 1), 1, 0);
    std::fill_n(to(2, target_), target_, 0);
    std::fill_n(to(3, target_), target_, 0);
    float* const weights = out.inputs[4].As<float>() + row * target_;
    for (int64_t t = 0; t < target_; ++t) weights[t] = WeightOf(sample, t);
    const int32_t* const from = Sample(sample);
    if (from == nullptr) return;
    const int32_t* const targets = from + input_;
    std::copy_n(from, input_, to(0, input_));
    to(1, 1)[0] = targets[target_];
    std::copy_n(targets, target_ - 1, to(2, target_) + 1);
    std::copy_n(targets, target_, to(3, target_));
  }
  void Derive(const Batch& batch) const override { DeriveInputs(spec_, batch); }

 private:
  // 1 within the target's length, which ends the sample.
  float Unmasked(const int32_t* sample, int64_t t) const override {
    return t < sample[input_ + target_ + 1] ? 1.0f : 0.0f;
  }

  const BatchSpec spec_;
  const int64_t input_, target_;
};

}  // namespace

void SetT5Shape(const testing::Json& config, TinyRun& run) {
  run.model = [shape = ConfigOf(config)] { return MakeModel(shape); };
}

std::shared_ptr<const RowSource> T5Rows(const testing::Json& config,
                                        const std::vector<int32_t>& tokens,
                                        const std::vector<float>& weights) {
  const BatchSpec spec = MakeModel(ConfigOf(config))->Inputs(config.at("case").at("inputs"));
  return std::make_shared<const PairRows>(spec, tokens, weights);
}

}  // namespace fsdp::testing
