// The view that a forward pass has of embedding tables outside the model's parameters: sums of
// their rows over bags of ids, and a place for the gradients of these sums.
// Tests: tests/trainer/nn/table_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_TABLE_VECTORS_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_TABLE_VECTORS_H_

#include <cstdint>

#include "trainer/core/view.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Belongs to one micro-batch, whose ids it knows. Calls enqueue on `stream` and return.
class TableVectors {
 public:
  virtual ~TableVectors() = default;

  virtual int64_t tables() const = 0;
  virtual int64_t width() const = 0;  // Elements of a row.

  // out [rows * tables(), width()], fp32, bf16 or fp16. Row r * tables() + t is the sum of the rows
  // of table t that sample r names, in the order of the sample's ids, in fp32, rounded once. It is
  // zero where the sample names none. Every call for a micro-batch gives the same bits.
  virtual void Pool(Stream& stream, View out) = 0;
  // Adds d, the gradient of Pool()'s output: the same shape, and any of the three dtypes.
  virtual void AddGradient(Stream& stream, ConstView d) = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_TABLE_VECTORS_H_
