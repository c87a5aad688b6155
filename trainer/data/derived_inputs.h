// The inputs of a batch that follow from others (BatchInput::Role::kDerived).
// Tests: tests/trainer/data/derived_inputs_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_DERIVED_INPUTS_H_
#define FSDP_TRAIN_TRAINER_DATA_DERIVED_INPUTS_H_

#include "trainer/core/batch.h"

namespace fsdp {

// Throws std::invalid_argument for a derived input that does not say what it is, is not int32, or
// is the order of an input that is not there, not int32 or of another shape.
void CheckDerived(const BatchSpec& spec);

// Fills the derived inputs, in host memory, once the others are there. The order of an input is
// that of all rows together. `spec` has passed CheckDerived().
void DeriveInputs(const BatchSpec& spec, const Batch& batch);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_DERIVED_INPUTS_H_
