// Tests: tests/trainer/engine/mixed_precision_test.cc
#ifndef FSDP_TRAIN_MODELS_MAKE_MODEL_H_
#define FSDP_TRAIN_MODELS_MAKE_MODEL_H_

#include <memory>

#include "models/family.h"

namespace fsdp {

class Model;

// Shared, so that a file that only holds a Model need not include it. Throws std::invalid_argument
// for a shape that Validate() complains about.
std::shared_ptr<Model> MakeModel(const ModelShape& shape);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_MAKE_MODEL_H_
