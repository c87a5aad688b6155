// DHEN as a family: its fields, a size, and config.json.
// Tests: tests/models/dhen/dhen_test.cc
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/dhen/config.h"
#include "models/table_family.h"
#include "trainer/ops/norm.h"

namespace fsdp {
namespace {

using Config = DhenConfig;

constexpr int64_t kMaxColumns = int64_t{1} << 16;
constexpr int64_t kMaxRows = int64_t{1} << 40;
constexpr int64_t kMaxBag = int64_t{1} << 12;
constexpr int64_t kMaxVectors = int64_t{1} << 12;
constexpr int64_t kMaxWidth = int64_t{1} << 14;

std::vector<FieldRow<Config>> Rows() {
  return {
      Row("dense_columns", &Config::dense_columns, IntegerRange{1, kMaxColumns},
          "Columns of numbers in a sample", "13", {"num_dense", "dense_features"}, "dense_columns"),
      Row("table_rows", &Config::table_rows, IntegerRange{1, kMaxRows},
          "Rows of each column's table. An id's row is its remainder by this number", "26 x 100000",
          {"num_embeddings", "cardinalities"}, "table_rows"),
      Row("table_bags", &Config::table_bags, IntegerRange{1, kMaxBag},
          "Most ids in a cell of each column; their vectors are added up. Empty list: 1 in every "
          "column",
          "[]", {}, "table_bags"),
      Row("table_width", &Config::table_width, IntegerRange{1, kMaxWidth},
          "Width of all feature vectors: of a table's row and of a layer's output", "64",
          {"embedding_dim"}, "table_width"),
      TuningRow("table_capacity", &Config::table_capacity, RealRange{.at_least = 1, .at_most = 1e6},
                "Room of one round of the exchange, as a multiple of a rank's own ids; further ids "
                "take further rounds",
                "2.0"),
      NameRow("table_dtype", &Config::table_dtype, {"fp32", "bf16"},
              "Number format of the tables' rows. bf16: updates are rounded stochastically",
              "fp32"),
      Row("dense_vectors", &Config::dense_vectors, IntegerRange{1, kMaxVectors},
          "Feature vectors made from a sample's numbers", "6", {}, "dense_vectors"),
      Row("num_vectors", &Config::num_vectors, IntegerRange{2, kMaxVectors},
          "Feature vectors that each layer makes", "32", {}, "num_vectors"),
      Row("num_hidden_layers", &Config::num_hidden_layers, IntegerRange{1, kMaxHiddenLayers},
          "Layers", "4", {"n_layer", "n_layers", "num_layers"}, "num_hidden_layers"),
      Row("num_attention_heads", &Config::num_attention_heads, IntegerRange{1, kMaxHeads},
          "Attention heads", "4", {"n_head", "n_heads", "num_heads"}, "num_attention_heads"),
      Row("cross_rank", &Config::cross_rank, IntegerRange{1, kMaxHiddenSize},
          "Rank of the cross module's matrix", "64", {}, "cross_rank"),
      Row("intermediate_size", &Config::intermediate_size, IntegerRange{1, kMaxIntermediateSize},
          "Hidden width of the network that reads numbers, and of the head", "256", {},
          "intermediate_size"),
      Row("layer_norm_epsilon", &Config::layer_norm_epsilon,
          RealRange{.at_least = kMinLayerNormEps, .at_most = 1},
          "Added to the variance in every LayerNorm", "1e-5", {"layer_norm_eps", "norm_eps"},
          "layer_norm_epsilon"),
  };
}

// The DHEN of figure 8a of the FSDP paper (arXiv:2304.11277): 768 G numbers in tables and 550 M in
// layers. The paper prints no shape: docs/models.md.
Config Dhen550M() {
  return {.dense_columns = 64,
          .table_rows = std::vector<int64_t>(48, 62500000),
          .table_width = 256,
          .table_dtype = TableDType::kBFloat16,
          .dense_vectors = 16,
          .num_vectors = 64,
          .num_hidden_layers = 13,
          .num_attention_heads = 8,
          .cross_rank = 256,
          .intermediate_size = 256};
}

void Validate(const Config& c, ShapeChecks& checks) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  if (c.table_rows.empty()) {
    checks.Add("table_rows", "a DHEN reads at least one column of ids");
  }
  if (c.tables() > kMaxVectors) {
    checks.Add("table_rows",
               "has " + text(c.tables()) + " tables, want at most " + text(kMaxVectors));
  }
  if (!c.table_bags.empty() && c.table_bags.size() != c.table_rows.size()) {
    checks.Add("table_bags",
               "has " + text(std::ssize(c.table_bags)) + " numbers, want one for each of " +
                   text(c.tables()) + " tables, or none",
               {"table_rows"});
  }
  if (!checks.AreGood({"table_width"})) return;
  double elements = 0;
  for (const int64_t rows : c.table_rows) elements += static_cast<double>(rows);
  if (elements * static_cast<double>(c.table_width) > 0x1p59) {
    checks.Add("table_rows", "the tables have more than 2^59 numbers together", {"table_width"});
  }
  if (!checks.AreGood({"num_attention_heads"})) return;
  if (c.table_width % c.num_attention_heads != 0) {
    checks.Add(
        "num_attention_heads",
        text(c.num_attention_heads) + " heads do not divide table_width " + text(c.table_width),
        {"table_width"});
  } else {
    checks.HeadDim("num_attention_heads", c.table_width / c.num_attention_heads, {"table_width"});
  }
}

// A first layer that reads as many vectors as it makes has no shortcut's weight.
void Shrink(Config& c) {
  const Config whole = c;
  const int64_t tables = std::clamp<int64_t>(whole.tables(), 1, kMaxVectors);
  const int64_t read = tables + 1;
  const bool alike = whole.vectors(0) == whole.num_vectors && read <= kMaxVectors;
  c = {.dense_columns = 1,
       .table_rows = std::vector<int64_t>(static_cast<size_t>(tables), 1),
       .table_width = 1,
       .dense_vectors = 1,
       .num_vectors = alike       ? read
                      : read == 2 ? 3
                                  : 2,
       .num_hidden_layers = std::clamp<int64_t>(whole.num_hidden_layers, 1, kMaxHiddenLayers),
       .num_attention_heads = 1,
       .cross_rank = 1,
       .intermediate_size = 1};
}

void ReadHf(const HfRelative<Config>&, HfObject& hf, Config& c) {
  c.table_capacity = hf.Real("table_capacity").value_or(c.table_capacity);
  hf.WantOneOf("table_dtype", {"\"fp32\"", "\"bf16\""});
  if (hf.Text("table_dtype") == "bf16") c.table_dtype = TableDType::kBFloat16;
}

void WriteHf(const HfRelative<Config>&, const Config& c, JsonTree& json) {
  json["table_capacity"] = c.table_capacity;
  json["table_dtype"] = c.table_dtype == TableDType::kFloat32 ? "fp32" : "bf16";
}

}  // namespace

namespace dhen {

const ModelFamily& Family() {
  static const TableFamily<DhenConfig> family({.name = "dhen",
                                               .rows = Rows(),
                                               .make = &MakeDhen,
                                               .presets = {{"dhen-550m", Dhen550M()}},
                                               .validate = &Validate,
                                               .shrink = &Shrink,
                                               .hf = {{"fsdp_train_dhen", "Dhen", Config()}},
                                               .read_hf = &ReadHf,
                                               .write_hf = &WriteHf});
  return family;
}

}  // namespace dhen

const ModelFamily& FamilyOfConfig(const DhenConfig&) { return dhen::Family(); }

}  // namespace fsdp
