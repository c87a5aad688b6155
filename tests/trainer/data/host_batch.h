#ifndef FSDP_TRAIN_TESTS_TRAINER_DATA_HOST_BATCH_H_
#define FSDP_TRAIN_TESTS_TRAINER_DATA_HOST_BATCH_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer/data/batch.h"

namespace fsdp::testing {

// Memory for a Batch, poisoned: what is not written shows.
struct HostBatch {
  HostBatch(int64_t rows, int64_t cols)
      : tokens(rows * cols, -7),
        targets(rows * cols, -7),
        positions(rows * cols, -7),
        keys(rows * 2, -7),
        weights(rows * cols, NAN),
        shape{rows, cols} {}

  Batch Views() {
    return {.tokens = {reinterpret_cast<std::byte*>(tokens.data()), DType::kInt32, shape},
            .targets = {reinterpret_cast<std::byte*>(targets.data()), DType::kInt32, shape},
            .weights = {reinterpret_cast<std::byte*>(weights.data()), DType::kFloat32, shape},
            .positions = {reinterpret_cast<std::byte*>(positions.data()), DType::kInt32, shape},
            .sample_keys = {reinterpret_cast<std::byte*>(keys.data()), DType::kInt32,
                            Shape{shape[0], 2}}};
  }

  std::vector<int32_t> tokens, targets, positions, keys;
  std::vector<float> weights;
  Shape shape;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_DATA_HOST_BATCH_H_
