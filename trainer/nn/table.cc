#include "trainer/nn/table.h"

#include <cmath>
#include <set>
#include <stdexcept>

#include "trainer/autograd/tape.h"
#include "trainer/core/check.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

constexpr int64_t kMostElements = Shape::kMaxElements;

void Require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("[CheckTables] " + what);
}

}  // namespace

int64_t TableSlots(const std::vector<EmbeddingTable>& tables) {
  int64_t slots = 0;
  for (const EmbeddingTable& table : tables) slots += table.bag;
  return slots;
}

void CheckTables(const std::vector<EmbeddingTable>& tables, const BatchSpec& spec) {
  if (tables.empty()) return;
  const EmbeddingTable& first = tables.front();
  std::set<std::string> names;
  int64_t left = kMostElements;
  for (const EmbeddingTable& table : tables) {
    const std::string& name = table.name;
    Require(names.insert(name).second, "two tables are called " + name);
    Require(table.rows > 0, name + " has " + std::to_string(table.rows) + " rows, want at least 1");
    Require(table.bag > 0, name + " takes " + std::to_string(table.bag) + " ids, want at least 1");
    Require(table.width > 0 && table.width == first.width,
            name + " is " + std::to_string(table.width) + " wide, want the width of all, " +
                std::to_string(first.width));
    Require(table.dtype == first.dtype, name + " has another dtype than " + first.name);
    Require(table.dtype == DType::kFloat32 || table.dtype == DType::kBFloat16,
            name + " is " + std::string(Name(table.dtype)) + ", want fp32 or bf16");
    Require(
        table.capacity == first.capacity && table.capacity >= 1 && std::isfinite(table.capacity),
        name + " has a capacity of " + Shortest(table.capacity) +
            ", want one of at least 1 for all");
    Require(table.rows <= left / table.width, "the tables have more than 2^59 elements");
    left -= table.rows * table.width;
  }
  for (const BatchInput& input : spec.inputs) {
    if (input.name != kTableIds) continue;
    const Shape want{TableSlots(tables), 2};
    Require(input.dtype == DType::kInt32 && input.sample == want,
            "the batch's ids are not int32 [" + std::to_string(want[0]) + ", 2] a sample");
    return;
  }
  Require(false, "the batch has no input ids");
}

Var PooledVectors(Tape& tape, const Batch& batch) {
  TableVectors* const tables = tape.tables();
  FSDP_CHECK(tables != nullptr) << "the tape has no tables to look up in";
  const Shape shape{batch.rows() * tables->tables(), tables->width()};
  Var y = tape.NewVar(shape, tape.activations());
  tables->Pool(tape.stream(), y.view());
  tape.Cheap({y.value}, [&tape, tables](const std::vector<View>& values) {
    tables->Pool(tape.stream(), values[0]);
  });
  tape.Push([&tape, tables, grad = y.grad] {
    const TensorPtr dy = Tape::Take(grad);
    tables->AddGradient(tape.stream(), dy->view());
  });
  return y;
}

}  // namespace fsdp
