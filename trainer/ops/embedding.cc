#include "trainer/ops/embedding.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/core/argsort.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/feature_backends.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

struct EmbeddingShape {
  int64_t rows, cols, vocab, max_positions;
};

constexpr int64_t kCacheLine = 16;  // Floats.

// table[ids[i], :] += dy[i, :] where the table is not fp32. A row of the table gets the sum of all
// its rows of dy, rounded once. So dy is read by the rows of the table, in the order `rows`.
void AddToTable(ThreadPool& pool, const EmbeddingShape& s, const int32_t* ids, const int32_t* rows,
                const ConstView& dy, const View& table) {
  pool.ParallelFor(s.cols, kCacheLine, [&](int64_t begin, int64_t end) {
    FloatPiece sum_buffer, in_buffer;
    ForEachPiece(DType::kBFloat16, begin, end, [&](int64_t col, int64_t n) {
      for (int64_t k = 0; k < s.rows;) {
        const int32_t id = ids[rows[k]];
        float* sum = FloatsToChange(table, id * s.cols + col, n, sum_buffer);
        for (; k < s.rows && ids[rows[k]] == id; ++k) {
          const float* in = ReadFloats(dy, rows[k] * s.cols + col, n, in_buffer);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) sum[j] += in[j];
        }
        WriteFloats(sum, n, table, id * s.cols + col);
      }
    });
  });
}

// The `order` of these tokens.
const int32_t* OrderOf(const int32_t* ids, int64_t rows) {
  static thread_local std::vector<int32_t> order;  // Kept: a step allocates nothing.
  order.resize(rows);
  Argsort({ids, order.size()}, order);
  return order.data();
}

void EmbeddingForwardCpu(ThreadPool& pool, const EmbeddingShape& s, const ConstView& token_ids,
                         const std::optional<ConstView>& position_ids, const ConstView& wte,
                         const std::optional<ConstView>& wpe, const View& y) {
  const int32_t* const tokens = token_ids.As<int32_t>();
  const int32_t* const positions = DataOrNull<int32_t>(position_ids);
  pool.ParallelFor(s.rows, 1, [&](int64_t begin, int64_t end) {
    FloatPiece token_buffer, position_buffer, out_buffer;
    for (int64_t i = begin; i < end; ++i) {
      ForEachPiece(y.dtype, 0, s.cols, [&](int64_t col, int64_t n) {
        const float* token = ReadFloats(wte, tokens[i] * s.cols + col, n, token_buffer);
        float* out = FloatsToWrite(y, i * s.cols + col, out_buffer);
        if (positions == nullptr) {
          std::copy_n(token, n, out);
        } else {
          const float* position = ReadFloats(*wpe, positions[i] * s.cols + col, n, position_buffer);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) out[j] = token[j] + position[j];
        }
        WriteFloats(out, n, y, i * s.cols + col);
      });
    }
  });
}

void EmbeddingBackwardCpu(ThreadPool& pool, const EmbeddingShape& s, const ConstView& token_ids,
                          const ConstView& order, const std::optional<ConstView>& position_ids,
                          const ConstView& dy, const std::optional<View>& dwte,
                          const std::optional<View>& dwpe) {
  const int32_t* const tokens = token_ids.As<int32_t>();
  const int32_t* const positions = DataOrNull<int32_t>(position_ids);
  const auto is_float = [](const std::optional<View>& table) {
    return table && table->dtype == DType::kFloat32;
  };
  if (dwte && !is_float(dwte)) AddToTable(pool, s, tokens, order.As<int32_t>(), dy, *dwte);
  if (dwpe && !is_float(dwpe)) {
    AddToTable(pool, s, positions, OrderOf(positions, s.rows), dy, *dwpe);
  }
  float* const token_table = is_float(dwte) ? dwte->As<float>() : nullptr;
  float* const position_table = is_float(dwpe) ? dwpe->As<float>() : nullptr;
  if (token_table == nullptr && position_table == nullptr) return;
  // Split by columns: two rows with one token must not be added by two threads.
  pool.ParallelFor(s.cols, kCacheLine, [&](int64_t begin, int64_t end) {
    FloatPiece buffer;
    for (int64_t i = 0; i < s.rows; ++i) {
      ForEachPiece(dy.dtype, begin, end, [&](int64_t col, int64_t n) {
        const float* in = ReadFloats(dy, i * s.cols + col, n, buffer);
        const auto add = [&](float* to) {
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) to[j] += in[j];
        };
        if (token_table != nullptr) add(token_table + tokens[i] * s.cols + col);
        if (position_table != nullptr) add(position_table + positions[i] * s.cols + col);
      });
    }
  });
}

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
