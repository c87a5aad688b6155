#include "tests/models/dhen/set_shape.h"

#include <span>
#include <string>
#include <utility>

#include "models/dhen/dhen.h"
#include "tests/testing/fixture_rows.h"
#include "tests/testing/json.h"
#include "trainer/autograd/tape.h"
#include "trainer/data/clicks/click_store.h"
#include "trainer/nn/layers.h"
#include "trainer/ops/elementwise.h"

namespace fsdp::testing {
namespace {

DhenConfig ConfigOf(const testing::Json& c) {
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

DhenConfig WithTables(const testing::Json& c) {
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

class ClickRows final : public FixtureRows {
 public:
  ClickRows(const DhenConfig& config, std::vector<int32_t> samples, std::vector<float> weights)
      : FixtureRows(config.dense_columns + config.tables() * config.table_width + 1, /*targets=*/1,
                    std::move(samples), std::move(weights)),
        config_(config) {}

  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    const int32_t* const from = Sample(sample);
    const int64_t columns = config_.dense_columns, n = config_.tables() * config_.table_width;
    const int32_t* const vectors = from ? from + columns : nullptr;
    PutNumbers(from, columns, out.inputs[kDense].As<float>() + row * columns);
    if (out.inputs.size() > kVectors) {
      PutNumbers(vectors, n, out.inputs[kVectors].As<float>() + row * n);
    }
    const int64_t words = out.inputs[kIds].NumElements() / out.rows();
    PutIds(vectors, out.inputs[kIds].As<int32_t>() + row * words);
    out.inputs[kClick].As<float>()[row] = from ? static_cast<float>(vectors[n]) : 0.0f;
    out.inputs[kClickWeight].As<float>()[row] = WeightOf(sample);
  }

 private:
  static constexpr size_t kVectors = kClickWeight + 1;  // VectorDhen's own input.

  void PutIds(const int32_t* vectors, int32_t* words) const {
    for (int64_t t = 0; t < config_.tables(); ++t) {
      for (int64_t i = 0; i < config_.bag(t); ++i, words += 2) {
        const int32_t number = vectors ? vectors[t * config_.table_width + i] : 0;
        const bool absent = number % 5 == 0;
        WriteId(absent ? kNoId : static_cast<uint64_t>(number), std::span<int32_t, 2>(words, 2));
      }
    }
  }

  const DhenConfig config_;
};

}  // namespace

std::shared_ptr<Model> DhenOfVectors(const DhenConfig& config) {
  return std::make_unique<VectorDhen>(config);
}

void SetDhenShape(const testing::Json& config, TinyRun& run) {
  run.model = [shape = ConfigOf(config)] { return DhenOfVectors(shape); };
}

void SetTableDhenShape(const testing::Json& config, TableDType dtype, TinyRun& run) {
  DhenConfig shape = WithTables(config);
  shape.table_dtype = dtype;
  run.model = [shape] { return std::make_unique<Dhen>(shape); };
}

std::shared_ptr<const RowSource> TableDhenRows(const testing::Json& config,
                                               const std::vector<int32_t>& samples,
                                               const std::vector<float>& weights) {
  return std::make_shared<const ClickRows>(WithTables(config), samples, weights);
}

std::shared_ptr<const RowSource> DhenRows(const testing::Json& config,
                                          const std::vector<int32_t>& samples,
                                          const std::vector<float>& weights) {
  return std::make_shared<const ClickRows>(ConfigOf(config), samples, weights);
}

}  // namespace fsdp::testing
