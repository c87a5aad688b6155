// The ops of a training step as `bench ops` calls them, each alone.
// Tests: tests/trainer/bench/op_bench_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_OP_CASES_H_
#define FSDP_TRAIN_TRAINER_BENCH_OP_CASES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/bench/bench_tensors.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Sizes of one micro-batch; the defaults are GPT-2 124M's. heads divides hidden, and hidden / heads
// is even (rotary positions).
struct OpShapes {
  int64_t batch = 4, seq = 512;
  int64_t hidden = 768, intermediate = 3072, heads = 12;
  int64_t vocab = 50257;
};

inline AttentionDims DimsOf(const OpShapes& shapes) {
  return {shapes.batch, shapes.seq, shapes.heads, shapes.heads, shapes.hidden / shapes.heads};
}

struct OpCase {
  using Call = std::function<void(Stream& stream)>;

  std::string name;
  std::function<Call(BenchTensors&)> make;  // The tensors outlive the calls.
};

// In the order in which they are measured. Throws std::invalid_argument where the shapes are not an
// attention's.
std::vector<OpCase> OpCases(const OpShapes& shapes, AttentionBackend attention,
                            const ConvolutionBackend& convolution = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_OP_CASES_H_
