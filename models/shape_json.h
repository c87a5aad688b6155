// A model's shape as a checkpoint keeps it: a JSON object of the recipe's names.
//   {"family": "...", "hidden_size": 4096, ..., "rope_scaling": {"type": "default", ...}, ...}
// and those of its dropouts that are not 0.
// Tests: tests/models/shape_test.cc
#ifndef FSDP_TRAIN_MODELS_SHAPE_JSON_H_
#define FSDP_TRAIN_MODELS_SHAPE_JSON_H_

#include <string>

#include "models/family.h"

namespace fsdp {

std::string ShapeToJson(const ModelShape& shape);
// All fields of the family must be there but dropouts. Throws CheckpointError that begins with
// `where` the text is from; the shape passes Validate().
ModelShape ShapeFromJson(const std::string& text, const std::string& where);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_SHAPE_JSON_H_
