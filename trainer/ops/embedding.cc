#include "trainer/ops/embedding.h"

#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/embedding_cpu.h"
#include "trainer/ops/cuda/embedding_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

EmbeddingShape CheckOperands(const Arguments& arguments, const ConstView& tokens,
                             const std::optional<ConstView>& positions, const char* wte_name,
                             const ConstView& wte, const char* wpe_name,
                             const std::optional<ConstView>& wpe, const char* y_name,
                             const ConstView& y) {
  arguments.CheckDType(y_name, y.dtype, kFloatDTypes);
  arguments.CheckRank(y_name, y, y.dtype, 2);
  const int64_t rows = y.shape[0], cols = y.shape[1];
  arguments.Check("tokens", tokens, DType::kInt32, {rows});
  arguments.CheckRank(wte_name, wte, wte.dtype, 2);
  arguments.CheckWeight(wte_name, wte, y.dtype, {wte.shape[0], cols});
  arguments.Require(positions.has_value() == wpe.has_value(),
                    "positions and their table go together");
  if (!positions) return {rows, cols, wte.shape[0], 0};
  arguments.Check("positions", *positions, DType::kInt32, {rows});
  arguments.CheckRank(wpe_name, *wpe, wpe->dtype, 2);
  arguments.CheckWeight(wpe_name, *wpe, y.dtype, {wpe->shape[0], cols});
  return {rows, cols, wte.shape[0], wpe->shape[0]};
}

// Bytes of a table: a row for each row of y.
double RowBytes(const EmbeddingShape& shape, const ConstView& table) {
  return static_cast<double>(shape.rows * shape.cols * SizeOf(table.dtype));
}

}  // namespace

void EmbeddingForward(Stream& stream, ConstView tokens, std::optional<ConstView> positions,
                      ConstView wte, std::optional<ConstView> wpe, View y) {
  const Arguments arguments("embedding_forward");
  const EmbeddingShape shape =
      CheckOperands(arguments, tokens, positions, "wte", wte, "wpe", wpe, "y", y);
  arguments.CheckDisjoint("y", y, "tokens", tokens);
  arguments.CheckDisjoint("y", y, "wte", wte);

  Operation operation{
      .name = "embedding_forward", .reads = {tokens, wte}, .writes = {y}, .costs = {}};
  Cost cost{.flops = static_cast<double>(y.NumElements()),
            .bytes_read = static_cast<double>(tokens.bytes()) + RowBytes(shape, wte),
            .bytes_written = static_cast<double>(y.bytes())};
  if (positions) {
    arguments.CheckDisjoint("y", y, "positions", *positions);
    arguments.CheckDisjoint("y", y, "wpe", *wpe);
    operation.reads.insert(operation.reads.end(), {*positions, *wpe});
    cost.bytes_read += static_cast<double>(positions->bytes()) + RowBytes(shape, *wpe);
  }
  operation.costs = {cost};
  operation.kernels = {.cpu = OnCpu(EmbeddingForwardCpu, shape, tokens, positions, wte, wpe, y),
                       .cuda = OnCuda(EmbeddingForwardCuda, tokens, positions, wte, wpe, y)};
  stream.Enqueue(std::move(operation));
}

void EmbeddingBackward(Stream& stream, ConstView tokens, ConstView order,
                       std::optional<ConstView> positions, ConstView dy, std::optional<View> dwte,
                       std::optional<View> dwpe) {
  const Arguments arguments("embedding_backward");
  arguments.CheckDType("dy", dy.dtype, kFloatDTypes);
  arguments.CheckRank("dy", dy, dy.dtype, 2);
  EmbeddingShape shape{dy.shape[0], dy.shape[1], 0, 0};
  Operation operation{"embedding_backward", {dy}, {}, {}};
  Cost cost{.bytes_read = static_cast<double>(dy.bytes())};
  OnGpu gpu{.launches = 0};  // One a table.
  const auto add = [&](const char* name, const View& table, const char* ids_name,
                       const ConstView& ids) {
    arguments.Check(ids_name, ids, DType::kInt32, {shape.rows});
    arguments.CheckRank(name, table, table.dtype, 2);
    arguments.CheckGradient(name, table, {table.shape[0], shape.cols});
    arguments.CheckDisjoint(name, table, ids_name, ids);
    arguments.CheckDisjoint(name, table, "dy", dy);
    operation.reads.push_back(ids);
    operation.writes.push_back(table);
    cost += Cost{.flops = static_cast<double>(dy.NumElements()),
                 .bytes_read = static_cast<double>(ids.bytes()) + RowBytes(shape, table),
                 .bytes_written = RowBytes(shape, table)};
    if (gpu.launches++ > 0) gpu.extra_bytes += static_cast<double>(dy.bytes());
    return table.shape[0];
  };
  arguments.Require(positions || !dwpe, "dwpe is given, want none without positions");
  if (dwte) {
    shape.vocab = add("dwte", *dwte, "tokens", tokens);
    arguments.Check("order", order, DType::kInt32, {shape.rows});
    arguments.CheckDisjoint("dwte", *dwte, "order", order);
    operation.reads.push_back(order);
    cost.bytes_read += static_cast<double>(order.bytes());
  }
  if (dwpe) shape.max_positions = add("dwpe", *dwpe, "positions", *positions);
  if (dwte && dwpe) {
    arguments.CheckDisjoint("dwte", *dwte, "dwpe", *dwpe);
    arguments.CheckDisjoint("dwte", *dwte, "positions", *positions);
    arguments.CheckDisjoint("dwpe", *dwpe, "tokens", tokens);
  }
  operation.costs = {{cost, gpu}};
  operation.kernels = {
      .cpu = OnCpu(EmbeddingBackwardCpu, shape, tokens, order, positions, dy, dwte, dwpe),
      .cuda = OnCuda(EmbeddingBackwardCuda, tokens, order, positions, dy, dwte, dwpe)};
  stream.Enqueue(std::move(operation));
}

}  // namespace fsdp
