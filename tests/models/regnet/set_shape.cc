#include "tests/models/regnet/set_shape.h"

#include <utility>

#include "models/regnet/config.h"
#include "models/regnet/regnet.h"
#include "tests/testing/fixture_rows.h"
#include "tests/testing/json.h"
#include "trainer/autograd/tape.h"
#include "trainer/ops/elementwise.h"

namespace fsdp::testing {
namespace {

RegNetConfig ConfigOf(const testing::Json& c) {
  const testing::Json& of = c.at("case");
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

}  // namespace

void SetRegNetShape(const testing::Json& config, TinyRun& run) {
  run.options.executor.batch_norm_sync = true;
  run.model = [shape = ConfigOf(config)] { return std::make_unique<ScoredRegNet>(shape); };
}

std::shared_ptr<const RowSource> RegNetRows(const testing::Json& config,
                                            const std::vector<int32_t>& samples,
                                            const std::vector<float>& weights) {
  return std::make_shared<const ImageFixtureRows>(RegNet(ConfigOf(config)).Inputs(0), samples,
                                                  weights);
}

}  // namespace fsdp::testing
