#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_EMBEDDING_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_EMBEDDING_CPU_H_

#include <cstdint>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

struct EmbeddingShape {
  int64_t rows, cols, vocab, max_positions;
};

// Null pointers: no positions.
void EmbeddingForwardCpu(ThreadPool& pool, const EmbeddingShape& shape, const int32_t* tokens,
                         const int32_t* positions, const float* wte, const float* wpe, float* y);
// dwte and dwpe may be null.
void EmbeddingBackwardCpu(ThreadPool& pool, const EmbeddingShape& shape, const int32_t* tokens,
                          const int32_t* positions, const float* dy, float* dwte, float* dwpe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_EMBEDDING_CPU_H_
