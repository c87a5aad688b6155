// All families, in the order of their list in models/BUILD.bazel, from which the source is made.
// Tests: tests/models/family_test.cc
#ifndef FSDP_TRAIN_MODELS_FAMILIES_H_
#define FSDP_TRAIN_MODELS_FAMILIES_H_

#include <span>

#include "models/family.h"

namespace fsdp {

std::span<const ModelFamily* const> Families();

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_FAMILIES_H_
