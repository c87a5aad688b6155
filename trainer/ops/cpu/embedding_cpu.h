#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_EMBEDDING_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_EMBEDDING_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct EmbeddingShape {
  int64_t rows, cols, vocab, max_positions;
};

void EmbeddingForwardCpu(ThreadPool& pool, const EmbeddingShape& shape, const ConstView& tokens,
                         const std::optional<ConstView>& positions, const ConstView& wte,
                         const std::optional<ConstView>& wpe, const View& y);
void EmbeddingBackwardCpu(ThreadPool& pool, const EmbeddingShape& shape, const ConstView& tokens,
                          const ConstView& order, const std::optional<ConstView>& positions,
                          const ConstView& dy, const std::optional<View>& dwte,
                          const std::optional<View>& dwpe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_EMBEDDING_CPU_H_
