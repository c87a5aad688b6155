#include "trainer/ops/cpu/embedding_cpu.h"

#include <algorithm>

namespace fsdp {
namespace {

constexpr int64_t kCacheLine = 16;  // Floats.

}  // namespace

void EmbeddingForwardCpu(ThreadPool& pool, const EmbeddingShape& s, const ConstView& token_ids,
                         const std::optional<ConstView>& position_ids, const ConstView& wte,
                         const std::optional<ConstView>& wpe, const View& y) {
  const int32_t* const tokens = token_ids.As<int32_t>();
  const int32_t* const positions = DataOrNull<int32_t>(position_ids);
  pool.ParallelFor(s.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* token = wte.As<float>() + tokens[i] * s.cols;
      float* out = y.As<float>() + i * s.cols;
      if (positions == nullptr) {
        std::copy_n(token, s.cols, out);
        continue;
      }
      const float* position = wpe->As<float>() + positions[i] * s.cols;
#pragma omp simd
      for (int64_t j = 0; j < s.cols; ++j) out[j] = token[j] + position[j];
    }
  });
}

void EmbeddingBackwardCpu(ThreadPool& pool, const EmbeddingShape& s, const ConstView& token_ids,
                          const std::optional<ConstView>& position_ids, const ConstView& dy,
                          const std::optional<View>& dwte, const std::optional<View>& dwpe) {
  const int32_t* const tokens = token_ids.As<int32_t>();
  const int32_t* const positions = DataOrNull<int32_t>(position_ids);
  // Split by columns: two rows with one token must not be added by two threads.
  pool.ParallelFor(s.cols, kCacheLine, [&](int64_t begin, int64_t end) {
    const auto add = [&](const float* in, float* to) {
#pragma omp simd
      for (int64_t j = begin; j < end; ++j) to[j] += in[j];
    };
    for (int64_t i = 0; i < s.rows; ++i) {
      const float* in = dy.As<float>() + i * s.cols;
      if (dwte) add(in, dwte->As<float>() + tokens[i] * s.cols);
      if (dwpe) add(in, dwpe->As<float>() + positions[i] * s.cols);
    }
  });
}

}  // namespace fsdp
