#include "trainer/ops/embedding.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/embedding_cpu.h"

namespace fsdp {
namespace {

EmbeddingShape CheckOperands(const Arguments& arguments, const ConstView& tokens,
                             const ConstView& positions, const char* wte_name, const ConstView& wte,
                             const char* wpe_name, const ConstView& wpe, const char* y_name,
                             const ConstView& y) {
  arguments.CheckRank(y_name, y, DType::kFloat32, 2);
  const int64_t rows = y.shape[0], cols = y.shape[1];
  arguments.Check("tokens", tokens, DType::kInt32, {rows});
  arguments.Check("positions", positions, DType::kInt32, {rows});
  arguments.CheckRank(wte_name, wte, DType::kFloat32, 2);
  arguments.Check(wte_name, wte, DType::kFloat32, {wte.shape[0], cols});
  arguments.CheckRank(wpe_name, wpe, DType::kFloat32, 2);
  arguments.Check(wpe_name, wpe, DType::kFloat32, {wpe.shape[0], cols});
  return {rows, cols, wte.shape[0], wpe.shape[0]};
}

}  // namespace

void EmbeddingForward(Stream& stream, ConstView tokens, ConstView positions, ConstView wte,
                      ConstView wpe, View y) {
  const Arguments arguments("embedding_forward");
  const EmbeddingShape shape =
      CheckOperands(arguments, tokens, positions, "wte", wte, "wpe", wpe, "y", y);
  arguments.CheckDisjoint("y", y, "tokens", tokens);
  arguments.CheckDisjoint("y", y, "positions", positions);
  arguments.CheckDisjoint("y", y, "wte", wte);
  arguments.CheckDisjoint("y", y, "wpe", wpe);

  const double y_bytes = static_cast<double>(y.bytes());
  const double id_bytes = static_cast<double>(tokens.bytes() + positions.bytes());
  stream.Enqueue({.name = "embedding_forward",
                  .reads = {tokens, positions, wte, wpe},
                  .writes = {y},
                  .cost = {.flops = static_cast<double>(y.NumElements()),
                           .bytes_read = id_bytes + 2 * y_bytes,
                           .bytes_written = y_bytes}},
                 [=](ThreadPool& pool) {
                   EmbeddingForwardCpu(pool, shape, tokens.As<int32_t>(), positions.As<int32_t>(),
                                       wte.As<float>(), wpe.As<float>(), y.As<float>());
                 });
}

void EmbeddingBackward(Stream& stream, ConstView tokens, ConstView positions, ConstView dy,
                       std::optional<View> dwte, std::optional<View> dwpe) {
  const Arguments arguments("embedding_backward");
  arguments.CheckRank("dy", dy, DType::kFloat32, 2);
  EmbeddingShape shape{dy.shape[0], dy.shape[1], 0, 0};
  arguments.Check("tokens", tokens, DType::kInt32, {shape.rows});
  arguments.Check("positions", positions, DType::kInt32, {shape.rows});
  const double dy_bytes = static_cast<double>(dy.bytes());
  Operation operation{"embedding_backward", {tokens, positions, dy}, {}, {}};
  operation.cost.bytes_read = static_cast<double>(tokens.bytes() + positions.bytes()) + dy_bytes;
  const auto add = [&](const char* name, const std::optional<View>& table, int64_t* size) {
    if (!table) return;
    arguments.CheckRank(name, *table, DType::kFloat32, 2);
    arguments.Check(name, *table, DType::kFloat32, {table->shape[0], shape.cols});
    arguments.CheckDisjoint(name, *table, "tokens", tokens);
    arguments.CheckDisjoint(name, *table, "positions", positions);
    arguments.CheckDisjoint(name, *table, "dy", dy);
    *size = table->shape[0];
    operation.writes.push_back(*table);
    operation.cost +=
        Cost{.flops = dy_bytes / 4, .bytes_read = dy_bytes, .bytes_written = dy_bytes};
  };
  add("dwte", dwte, &shape.vocab);
  add("dwpe", dwpe, &shape.max_positions);
  if (dwte && dwpe) arguments.CheckDisjoint("dwte", *dwte, "dwpe", *dwpe);

  stream.Enqueue(operation, [=](ThreadPool& pool) {
    EmbeddingBackwardCpu(pool, shape, tokens.As<int32_t>(), positions.As<int32_t>(), dy.As<float>(),
                         dwte ? dwte->As<float>() : nullptr, dwpe ? dwpe->As<float>() : nullptr);
  });
}

}  // namespace fsdp
