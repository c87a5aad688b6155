#include "tests/models/regnet/set_shape.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "models/regnet/config.h"
#include "models/regnet/regnet.h"
#include "trainer/ops/elementwise.h"

namespace fsdp::testing {
namespace {

RegNetConfig ConfigOf(const nlohmann::json& c) {
  const nlohmann::json& of = c.at("case");
  RegNetConfig config;
  config.image_size = of.at("image");
  config.num_channels = of.at("channels");
  config.num_labels = of.at("labels");
  config.embedding_size = c.at("embedding_size");
  config.hidden_sizes = c.at("hidden_sizes").get<std::vector<int64_t>>();
  config.depths = c.at("depths").get<std::vector<int64_t>>();
  config.groups_width = c.at("groups_width");
  config.squeeze_excitation = c.at("layer_type") == "y";
  config.downsample_in_first_stage = c.at("downsample_in_first_stage");
  return config;
}

// Whose scores a test can ask for: those of a row, whatever the column.
class ScoredRegNet final : public RegNet, public Autoregressive {
 public:
  explicit ScoredRegNet(const RegNetConfig& config) : RegNet(config), labels_(config.num_labels) {}

  const Autoregressive* autoregressive() const override { return this; }
  void Logits(Tape& tape, const Batch& batch, int64_t, View logits) const override {
    const Var hidden = Hidden(tape, batch);
    tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
      Copy(t.stream(), Scores(t, in).view(), logits);
      return Var{};
    });
  }
  int64_t outputs() const override { return labels_; }
  int64_t max_positions() const override { return 1; }

 private:
  const int64_t labels_;
};

class FixtureRows final : public RowSource {
 public:
  FixtureRows(const nlohmann::json& config, std::vector<int32_t> samples,
              std::vector<float> weights)
      : pixels_(RegNet(ConfigOf(config)).Inputs(0).inputs[0].sample.NumElements()),
        samples_(std::move(samples)),
        weights_(std::move(weights)) {}

  const Mixture& mixture() const override { return mixture_; }
  int64_t sources() const override { return 1; }
  int64_t Rows(int64_t) const override { return std::ssize(samples_) / (pixels_ + 1); }
  std::string Describe() const override { return "a fixture"; }
  void CheckViews(const Batch&, int64_t) const override {}

  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    float* const pixels = out.inputs[0].As<float>() + row * pixels_;
    int32_t& label = out.inputs[1].As<int32_t>()[row];
    float& weight = out.inputs[2].As<float>()[row];
    if (sample == kNoSample) {
      std::fill_n(pixels, pixels_, 0.0f);
      label = 0;
      weight = 0;
      return;
    }
    const int32_t* const from = samples_.data() + sample * (pixels_ + 1);
    for (int64_t i = 0; i < pixels_; ++i) pixels[i] = static_cast<float>(from[i] - 128) / 64;
    label = from[pixels_];
    weight = WeightOf(sample);
  }

  int64_t Targets(int64_t begin, int64_t end) const override {
    int64_t n = 0;
    for (int64_t sample = begin; sample < end; ++sample) n += WeightOf(sample) != 0 ? 1 : 0;
    return n;
  }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has none"; }

 private:
  float WeightOf(int64_t sample) const {
    return weights_.empty() ? 1.0f : weights_[static_cast<size_t>(sample)];
  }

  const int64_t pixels_;
  const std::vector<int32_t> samples_;
  const std::vector<float> weights_;
  const Mixture mixture_{std::vector<double>{1.0}, 0};
};

}  // namespace

void SetRegNetShape(const nlohmann::json& config, TinyRun& run) {
  run.options.executor.micro_batch_size = run.options.global_batch_size;
  run.options.executor.batch_norm_sync = true;
  run.model = [shape = ConfigOf(config)] { return std::make_unique<ScoredRegNet>(shape); };
}

std::shared_ptr<const RowSource> RegNetRows(const nlohmann::json& config,
                                            const std::vector<int32_t>& samples,
                                            const std::vector<float>& weights) {
  return std::make_shared<const FixtureRows>(config, samples, weights);
}

}  // namespace fsdp::testing
