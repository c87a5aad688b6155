// Embedding tables outside FSDP. A model declares them, and reads sums of their rows by one layer.
// Their rows are dealt over all ranks; no unit, gradient norm or average includes them
// (docs/fsdp.md, "Embedding tables").
// Tests: tests/trainer/nn/table_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_TABLE_H_
#define FSDP_TRAIN_TRAINER_NN_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/core/dtype.h"
#include "trainer/nn/parameter.h"

namespace fsdp {

class Tape;
struct Var;

// The batch input that all tables of a model read: int32 [slots, 2] per sample, where slots is the
// sum of the tables' bags, in the order of the tables. A slot holds a 64-bit id as two words, the
// low one first. An id of all ones (-1, -1) is absent. Any other id, as an unsigned number, names
// row id mod rows of its table.
inline constexpr const char* kTableIds = "ids";

struct EmbeddingTable {
  std::string name;  // No other table's, and no parameter's or buffer's.
  int64_t rows = 0;
  int64_t width = 0;  // Elements of a row: the same for all tables of a model.
  int64_t bag = 1;    // The most ids that a sample has for it.
  Init init = {};     // Element i of the table: initial_values.h.
  // The dtype of kept rows: fp32, or bf16, which updates round stochastically. One for all tables.
  DType dtype = DType::kFloat32;
  // The ids that a rank takes in one round of an exchange, as a multiple of the ids that its own
  // samples have in a step: at least 1. One for all tables.
  double capacity = 2;
};

// Ids of a sample, over all tables.
int64_t TableSlots(const std::vector<EmbeddingTable>& tables);

// Throws std::invalid_argument for invalid tables: without rows; of several widths, dtypes or
// capacities; with one name twice; of more than 2^59 elements together; or where `spec` lacks the
// input kTableIds of this shape.
void CheckTables(const std::vector<EmbeddingTable>& tables, const BatchSpec& spec);

// The sum of each sample's rows of each table, [rows * tables, width], in the tape's dtype of
// activations. Row r * tables + t belongs to sample r and table t, and is zero where the sample has
// no id. A model calls this once, in its first segment. Backward hands the gradient to the tables.
// Cheap to make again. FSDP_CHECKs that the tape has tables (Tape::LookUpIn).
Var PooledVectors(Tape& tape, const Batch& batch);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_TABLE_H_
