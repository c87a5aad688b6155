// The shape of a DHEN (Zhang et al. 2022, arXiv:2203.11014), which predicts clicks from numbers and
// ids: layers that add up what five kinds of interactions make of a sample's feature vectors.
// docs/models.md has the formulas.
// Tests: tests/models/dhen/dhen_test.cc
#ifndef FSDP_TRAIN_MODELS_DHEN_CONFIG_H_
#define FSDP_TRAIN_MODELS_DHEN_CONFIG_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp {

class Model;
class ModelFamily;

// The dtype that rows of tables are kept in.
enum class TableDType { kFloat32, kBFloat16 };

// Names as in recipes.
struct DhenConfig {
  int64_t dense_columns = 13;                                          // Numbers of a sample.
  std::vector<int64_t> table_rows = std::vector<int64_t>(26, 100000);  // A table a column of ids.
  std::vector<int64_t> table_bags = {};  // Most ids of a cell; empty: 1 in every column.
  int64_t table_width = 64;              // Elements of a feature vector, wherever it comes from.
  double table_capacity = 2;             // nn/table.h.
  TableDType table_dtype = TableDType::kFloat32;
  int64_t dense_vectors = 6;  // Vectors made of the numbers.
  int64_t num_vectors = 32;   // Vectors that each layer makes.
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t cross_rank = 64;          // Rank of the cross module's matrix.
  int64_t intermediate_size = 256;  // Hidden width of what reads numbers, and of the head.
  double layer_norm_epsilon = 1e-5;

  int64_t tables() const { return static_cast<int64_t>(table_rows.size()); }
  int64_t bag(int64_t table) const {
    return table_bags.empty() ? 1 : table_bags[static_cast<size_t>(table)];
  }
  // Vectors that layer `layer` reads.
  int64_t vectors(int64_t layer) const {
    return layer == 0 ? tables() + dense_vectors : num_vectors;
  }
  bool operator==(const DhenConfig&) const = default;
};

const ModelFamily& FamilyOfConfig(const DhenConfig& config);
std::shared_ptr<Model> MakeDhen(const DhenConfig& config);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_DHEN_CONFIG_H_
