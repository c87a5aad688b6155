#include "tests/models/vit/set_shape.h"

#include <utility>

#include "models/vit/config.h"
#include "models/vit/vit.h"
#include "tests/testing/fixture_rows.h"
#include "tests/testing/json.h"
#include "trainer/autograd/tape.h"
#include "trainer/ops/elementwise.h"

namespace fsdp::testing {
namespace {

VitConfig ConfigOf(const testing::Json& c) {
  const testing::Json& of = c.at("case");
  const int64_t head_dim = of.at("head_dim");
  VitConfig config;
  config.image_size = c.at("image_size");
  config.patch_size = c.at("patch_size");
  config.num_channels = c.at("num_channels");
  config.num_labels = of.at("labels");
  config.hidden_size = c.at("hidden_size");
  config.intermediate_size = c.at("intermediate_size");
  config.num_hidden_layers = c.at("num_hidden_layers");
  config.num_attention_heads = c.at("num_attention_heads");
  config.head_dim = head_dim > 0 ? head_dim : config.hidden_size / config.num_attention_heads;
  config.qkv_bias = c.at("qkv_bias");
  if (head_dim > 0) config.reattention = Reattention::kLayerNorm;
  config.layer_norm_epsilon = of.at("epsilon");
  return config;
}

// Whose scores a test can ask for: those of a row, whatever the column.
class ScoredVit final : public Vit, public Autoregressive {
 public:
  explicit ScoredVit(const VitConfig& config) : Vit(config), labels_(config.num_labels) {}

  const Autoregressive* autoregressive() const override { return this; }
  void Logits(Tape& tape, const Batch& batch, int64_t, View logits) const override {
    const Var hidden = Hidden(tape, batch);
    tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
      Copy(t.stream(), Scores(t, in, batch.rows()).view(), logits);
      return Var{};
    });
  }
  int64_t outputs() const override { return labels_; }
  int64_t max_positions() const override { return 1; }

 private:
  const int64_t labels_;
};

}  // namespace

void SetVitShape(const testing::Json& config, TinyRun& run) {
  run.model = [shape = ConfigOf(config)] { return std::make_unique<ScoredVit>(shape); };
}

std::shared_ptr<const RowSource> VitRows(const testing::Json& config,
                                         const std::vector<int32_t>& samples,
                                         const std::vector<float>& weights) {
  return std::make_shared<const ImageFixtureRows>(Vit(ConfigOf(config)).Inputs(0), samples,
                                                  weights);
}

}  // namespace fsdp::testing
