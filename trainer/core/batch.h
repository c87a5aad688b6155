// A batch: the inputs that a model declares, for one micro-batch, a sample a row.
// Tests: tests/trainer/core/batch_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_BATCH_H_
#define FSDP_TRAIN_TRAINER_CORE_BATCH_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/view.h"

namespace fsdp {

struct BatchInput {
  enum class Role {
    kInput,
    kTarget,   // A loss compares with it.
    kWeight,   // fp32, a target's weight in the loss: 0 in rows left over.
    kDerived,  // Follows from the others: a source computes it.
  };

  std::string name;
  DType dtype = DType::kFloat32;  // fp32 or int32.
  Shape sample = {};              // One sample's shape.
  Role role = Role::kInput;
  int64_t values = 0;  // int32 inputs: each element is in [0, values).
  // Two kinds of int32 input that any source can derive. order_of names another input: this one has
  // the indexes of its elements, sorted by value, equal ones in their order. counts: 0, 1, ... in
  // every row.
  std::string order_of = {};
  bool counts = false;

  bool operator==(const BatchInput&) const = default;
};

struct BatchSpec {
  std::vector<BatchInput> inputs;  // No two names alike.
  int64_t targets = 1;             // Targets of a sample: a mean loss divides by their number.
  int64_t tokens = 0;              // Tokens of a full sample that a model reads; 0: no text.

  // People count a text's tokens, and samples of all else.
  int64_t Counted() const { return tokens > 0 ? tokens : targets; }

  // FSDP_CHECKs that there is such an input.
  size_t IndexOf(std::string_view name) const;
  bool operator==(const BatchSpec&) const = default;
};

struct Batch {
  std::vector<View> inputs;  // In the spec's order, [rows, sample...].
  // int32 [rows, 2]: 64 bits, the low word first, that key the random numbers of the row's sample.
  // They depend on the run's seed and the global sample alone.
  View sample_keys = {};

  int64_t rows() const { return sample_keys.shape[0]; }
  // The batch's rows [0, rows).
  Batch First(int64_t rows) const;
};

template <typename Visit>
void ForEachAddress(Batch& batch, const Visit& visit) {
  for (View& view : batch.inputs) visit(view);
  visit(batch.sample_keys);
}

// Lays a batch out in memory: views of [rows, sample...] in the spec's order and then the keys,
// each at a multiple of 64 bytes from `begin`.
Batch CarveBatch(const BatchSpec& spec, int64_t rows, std::byte* begin);
int64_t BatchBytes(const BatchSpec& spec, int64_t rows);
// Throws std::invalid_argument, "[who] ...", for views of another shape or dtype than `rows` rows
// of the spec.
void RequireBatch(const char* who, const BatchSpec& spec, int64_t rows, const Batch& batch);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_BATCH_H_
