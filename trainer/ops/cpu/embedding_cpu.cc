#include "trainer/ops/cpu/embedding_cpu.h"

#include <algorithm>
#include <vector>

#include "trainer/core/argsort.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/runtime/kernel.h"

namespace fsdp {
namespace {

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

}  // namespace

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

}  // namespace fsdp
