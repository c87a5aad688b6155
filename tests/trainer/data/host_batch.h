#ifndef FSDP_TRAIN_TESTS_TRAINER_DATA_HOST_BATCH_H_
#define FSDP_TRAIN_TESTS_TRAINER_DATA_HOST_BATCH_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/tokens/token_batch.h"

namespace fsdp::testing {

// Memory for a batch of tokens, poisoned: an element that is not written shows.
struct HostBatch {
  HostBatch(int64_t rows, int64_t cols)
      : tokens(rows * cols, -7),
        targets(rows * cols, -7),
        positions(rows * cols, -7),
        order(rows * cols, -7),
        keys(rows * 2, -7),
        lengths(rows, -7),
        weights(rows * cols, NAN),
        shape{rows, cols} {}

  Batch Views() {
    const auto view = [](auto& values, DType dtype, const Shape& of) {
      return View(reinterpret_cast<std::byte*>(values.data()), dtype, of);
    };
    Batch batch;
    batch.inputs = {
        view(tokens, DType::kInt32, shape),    view(targets, DType::kInt32, shape),
        view(weights, DType::kFloat32, shape), view(positions, DType::kInt32, shape),
        view(order, DType::kInt32, shape),     view(lengths, DType::kInt32, {shape[0]})};
    batch.sample_keys = view(keys, DType::kInt32, Shape{shape[0], 2});
    return batch;
  }

  std::vector<int32_t> tokens, targets, positions, order, keys, lengths;
  std::vector<float> weights;
  Shape shape;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_DATA_HOST_BATCH_H_
