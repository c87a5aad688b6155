#include "tests/models/t5/set_shape.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/make_model.h"
#include "models/shape.h"
#include "models/t5/config.h"
#include "trainer/data/derived_inputs.h"

namespace fsdp::testing {
namespace {

T5Config ConfigOf(const nlohmann::json& c) {
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

class FixtureRows final : public RowSource {
 public:
  FixtureRows(const nlohmann::json& config, std::vector<int32_t> tokens, std::vector<float> weights)
      : spec_(MakeModel(ConfigOf(config))->Inputs(config.at("case").at("inputs"))),
        input_(spec_.inputs[0].sample[0]),
        target_(spec_.targets),
        tokens_(std::move(tokens)),
        weights_(std::move(weights)) {}

  const Mixture& mixture() const override { return mixture_; }
  int64_t sources() const override { return 1; }
  int64_t Rows(int64_t) const override { return std::ssize(tokens_) / width(); }
  std::string Describe() const override { return "a fixture"; }
  void CheckViews(const Batch&, int64_t) const override {}

  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    const auto to = [&](size_t input, int64_t n) {
      return out.inputs[input].As<int32_t>() + row * n;
    };
    std::fill_n(to(0, input_), input_, 0);
    std::fill_n(to(1, 1), 1, 0);
    std::fill_n(to(2, target_), target_, 0);
    std::fill_n(to(3, target_), target_, 0);
    float* const weights = out.inputs[4].As<float>() + row * target_;
    std::fill_n(weights, target_, 0.0f);
    if (sample == kNoSample) return;
    const int32_t* const from = tokens_.data() + sample * width();
    const int32_t* const targets = from + input_;
    std::copy_n(from, input_, to(0, input_));
    to(1, 1)[0] = targets[target_];
    std::copy_n(targets, target_ - 1, to(2, target_) + 1);
    std::copy_n(targets, target_, to(3, target_));
    for (int64_t t = 0; t < target_; ++t) weights[t] = WeightOf(sample, t);
  }
  void Derive(const Batch& batch) const override { DeriveInputs(spec_, batch); }

  int64_t Targets(int64_t begin, int64_t end) const override {
    int64_t n = 0;
    for (int64_t sample = begin; sample < end; ++sample) {
      for (int64_t t = 0; t < target_; ++t) n += WeightOf(sample, t) != 0 ? 1 : 0;
    }
    return n;
  }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has none"; }

 private:
  int64_t width() const { return input_ + target_ + 2; }
  float WeightOf(int64_t sample, int64_t t) const {
    if (!weights_.empty()) return weights_[static_cast<size_t>(sample * target_ + t)];
    return t < tokens_[static_cast<size_t>((sample + 1) * width() - 1)] ? 1.0f : 0.0f;
  }

  const BatchSpec spec_;
  const int64_t input_, target_;
  const std::vector<int32_t> tokens_;
  const std::vector<float> weights_;
  const Mixture mixture_{std::vector<double>{1.0}, 0};
};

}  // namespace

void SetT5Shape(const nlohmann::json& config, TinyRun& run) {
  run.model = [shape = ConfigOf(config)] { return MakeModel(shape); };
}

std::shared_ptr<const RowSource> T5Rows(const nlohmann::json& config,
                                        const std::vector<int32_t>& tokens,
                                        const std::vector<float>& weights) {
  return std::make_shared<const FixtureRows>(config, tokens, weights);
}

}  // namespace fsdp::testing
