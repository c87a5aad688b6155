// The sources of initial values, which Executor::Initialize() (executor.h) asks. Each writes
// elements [begin, begin + n) of its tensor to `values`, n elements of host memory, on any thread.
// Tests: tests/trainer/weights/initial_weights_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_FILL_H_
#define FSDP_TRAIN_TRAINER_FSDP_FILL_H_

#include <cstdint>
#include <functional>
#include <span>

#include "trainer/core/view.h"

namespace fsdp {

class ModelBuffer;
class Parameter;
struct EmbeddingTable;

using FillParameter = std::function<void(const Parameter&, int64_t begin, std::span<float> values)>;
// `values` has the buffer's dtype.
using FillBuffer = std::function<void(const ModelBuffer&, int64_t begin, const View& values)>;
using FillRows = std::function<void(const EmbeddingTable&, int64_t begin, std::span<float> values)>;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_FILL_H_
