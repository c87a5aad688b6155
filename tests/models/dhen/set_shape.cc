#include "tests/models/dhen/set_shape.h"

#include <span>
#include <string>
#include <utility>

#include "models/dhen/dhen.h"
#include "trainer/data/click_batch.h"
#include "trainer/ops/elementwise.h"

namespace fsdp::testing {
namespace {

DhenConfig ConfigOf(const nlohmann::json& c) {
  DhenConfig config;
  config.dense_columns = c.at("dense_columns");
  config.table_rows = c.at("table_rows").get<std::vector<int64_t>>();
  config.table_width = c.at("table_width");
  config.dense_vectors = c.at("dense_vectors");
  config.num_vectors = c.at("num_vectors");
  config.num_hidden_layers = c.at("num_hidden_layers");
  config.num_attention_heads = c.at("num_attention_heads");
  config.cross_rank = c.at("cross_rank");
  config.intermediate_size = c.at("intermediate_size");
  config.layer_norm_epsilon = c.at("layer_norm_epsilon");
  return config;
}

DhenConfig WithTables(const nlohmann::json& c) {
  DhenConfig config = ConfigOf(c);
  config.table_rows = {50, 7, 3, 20};
  config.table_bags = {1, 3, 1, 2};
  return config;
}

// Whose logit a test can ask for: that of a row, whatever the column.
class VectorDhen final : public Dhen, public Autoregressive {
 public:
  explicit VectorDhen(const DhenConfig& config)
      : Dhen(config), tables_(config.tables()), width_(config.table_width) {}

  BatchSpec Inputs(int64_t length) const override {
    BatchSpec spec = Dhen::Inputs(length);
    spec.inputs.push_back({"vectors", DType::kFloat32, Shape{tables_, width_}});
    return spec;
  }
  std::vector<EmbeddingTable> tables() const override { return {}; }
  const Autoregressive* autoregressive() const override { return this; }
  void Logits(Tape& tape, const Batch& batch, int64_t, View logits) const override {
    const Var hidden = Hidden(tape, batch);
    tape.Segment(HeadSegment(), hidden, /*recomputable=*/false, [&](Tape& t, const Var& in) {
      Copy(t.stream(), Logit(t, in).view(), logits);
      return Var{};
    });
  }
  int64_t outputs() const override { return 1; }
  int64_t max_positions() const override { return 1; }

 protected:
  Var Pooled(Tape& tape, const Batch& batch) const override {
    return FromBatch(tape, batch.inputs.back());
  }

 private:
  const int64_t tables_, width_;
};

class FixtureRows final : public RowSource {
 public:
  FixtureRows(const DhenConfig& config, std::vector<int32_t> samples, std::vector<float> weights)
      : config_(config),
        columns_(config.dense_columns),
        vectors_(config.tables() * config.table_width),
        samples_(std::move(samples)),
        weights_(std::move(weights)) {}

  const Mixture& mixture() const override { return mixture_; }
  int64_t sources() const override { return 1; }
  int64_t Rows(int64_t) const override { return std::ssize(samples_) / Size(); }
  std::string Describe() const override { return "a fixture"; }
  void CheckViews(const Batch&, int64_t) const override {}

  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    const bool is_one = sample != kNoSample;
    const int32_t* const from = is_one ? samples_.data() + sample * Size() : nullptr;
    const auto put = [&](size_t input, int64_t at, int64_t n) {
      float* const to = out.inputs[input].As<float>() + row * n;
      for (int64_t i = 0; i < n; ++i) {
        to[i] = is_one ? static_cast<float>(from[at + i] - 128) / 64 : 0.0f;
      }
    };
    put(kDense, 0, columns_);
    if (out.inputs.size() > kVectors) put(kVectors, columns_, vectors_);
    const int64_t words = out.inputs[kIds].NumElements() / out.rows();
    PutIds(from, out.inputs[kIds].As<int32_t>() + row * words);
    out.inputs[kClick].As<float>()[row] = is_one ? static_cast<float>(from[Size() - 1]) : 0.0f;
    out.inputs[kClickWeight].As<float>()[row] = is_one ? WeightOf(sample) : 0.0f;
  }

  int64_t Targets(int64_t begin, int64_t end) const override {
    int64_t n = 0;
    for (int64_t sample = begin; sample < end; ++sample) n += WeightOf(sample) != 0 ? 1 : 0;
    return n;
  }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has none"; }

 private:
  static constexpr size_t kVectors = kClickWeight + 1;  // VectorDhen's own input.

  int64_t Size() const { return columns_ + vectors_ + 1; }
  void PutIds(const int32_t* from, int32_t* words) const {
    for (int64_t t = 0; t < config_.tables(); ++t) {
      for (int64_t i = 0; i < config_.bag(t); ++i, words += 2) {
        const int32_t number = from ? from[columns_ + t * config_.table_width + i] : 0;
        const bool absent = number % 5 == 0;
        WriteId(absent ? kNoId : static_cast<uint64_t>(number), std::span<int32_t, 2>(words, 2));
      }
    }
  }
  float WeightOf(int64_t sample) const {
    return weights_.empty() ? 1.0f : weights_[static_cast<size_t>(sample)];
  }

  const DhenConfig config_;
  const int64_t columns_, vectors_;
  const std::vector<int32_t> samples_;
  const std::vector<float> weights_;
  const Mixture mixture_{std::vector<double>{1.0}, 0};
};

}  // namespace

std::unique_ptr<Model> DhenOfVectors(const DhenConfig& config) {
  return std::make_unique<VectorDhen>(config);
}

void SetDhenShape(const nlohmann::json& config, TinyRun& run) {
  run.model = [shape = ConfigOf(config)] { return DhenOfVectors(shape); };
}

void SetTableDhenShape(const nlohmann::json& config, TableDType dtype, TinyRun& run) {
  DhenConfig shape = WithTables(config);
  shape.table_dtype = dtype;
  run.model = [shape] { return std::make_unique<Dhen>(shape); };
}

std::shared_ptr<const RowSource> TableDhenRows(const nlohmann::json& config,
                                               const std::vector<int32_t>& samples,
                                               const std::vector<float>& weights) {
  return std::make_shared<const FixtureRows>(WithTables(config), samples, weights);
}

std::shared_ptr<const RowSource> DhenRows(const nlohmann::json& config,
                                          const std::vector<int32_t>& samples,
                                          const std::vector<float>& weights) {
  return std::make_shared<const FixtureRows>(ConfigOf(config), samples, weights);
}

}  // namespace fsdp::testing
