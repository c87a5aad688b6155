// What a model is fed: the inputs that it declares, a micro-batch of rows at a time, a sample a
// row. Tests: tests/trainer/core/batch_test.cc
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
    kTarget,   // What a loss compares with.
    kWeight,   // fp32, of a target's part in the loss: 0 in rows left over.
    kDerived,  // Follows from the others: a source computes it.
  };

  std::string name;
  DType dtype = DType::kFloat32;  // Or int32.
  Shape sample = {};              // Of one sample.
  Role role = Role::kInput;
  int64_t values = 0;  // Of int32: each is in [0, values).
  // Of what any source can derive, int32, either of: the places of that input's elements by value,
  // those of one value in their order; 0, 1, ... in every row.
  std::string order_of = {};
  bool counts = false;

  bool operator==(const BatchInput&) const = default;
};

struct BatchSpec {
  std::vector<BatchInput> inputs;  // No two names alike.
  int64_t targets = 1;             // Of a sample: what a mean loss divides by.

  // FSDP_CHECKs that there is such an input.
  size_t IndexOf(std::string_view name) const;
  bool operator==(const BatchSpec&) const = default;
};

struct Batch {
  std::vector<View> inputs;  // As the spec has them, [rows, sample...].
  // int32 [rows, 2]: 64 bits, the low word first, that name the row's sample for random numbers: of
  // the run's seed and the global sample alone.
  View sample_keys = {};

  int64_t rows() const { return sample_keys.shape[0]; }
  // Rows [0, rows) of it.
  Batch First(int64_t rows) const;
};

template <typename Visit>
void ForEachAddress(Batch& batch, const Visit& visit) {
  for (View& view : batch.inputs) visit(view);
  visit(batch.sample_keys);
}

// How one lies in memory: views of [rows, sample...] in the spec's order and then the keys, each at
// a multiple of 64 bytes from `begin`.
Batch CarveBatch(const BatchSpec& spec, int64_t rows, std::byte* begin);
int64_t BatchBytes(const BatchSpec& spec, int64_t rows);
// Throws std::invalid_argument, "[who] ...", for views of another shape or dtype than `rows` rows.
void RequireBatch(const char* who, const BatchSpec& spec, int64_t rows, const Batch& batch);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_BATCH_H_
