// Questions about a model's shape, whichever its family.
#ifndef FSDP_TRAIN_MODELS_SHAPE_H_
#define FSDP_TRAIN_MODELS_SHAPE_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "models/family.h"

namespace fsdp {

const ModelFamily* FindFamily(std::string_view name);  // Null where there is none.
inline std::string_view FamilyOf(const ModelShape& shape) { return shape.family().name(); }

// The family's standard; empty where there is no such family.
std::optional<ModelShape> DefaultShape(std::string_view family);
std::vector<ShapeMistake> Validate(const ModelShape& shape);
// Elements of the model's parameters, a shared one once. Builds the model, so `shape` must pass
// Validate().
int64_t NumParameters(const ModelShape& shape);

// For a model of tokens, causal or not: aborts for another.
int64_t VocabSize(const ModelShape& shape);
// For a causal language model: aborts for another.
DecoderShape DecoderOf(const ModelShape& shape);
// Tokens that a sequence may have: kMaxPositions where there are no positions.
int64_t MaxPositions(const ModelShape& shape);
// The smallest shape whose model has parameters of the same names.
ModelShape SmallestAlike(const ModelShape& shape);

// Published sizes, family by family.
const std::vector<ModelPreset>& ModelPresets();
const ModelShape* FindModelPreset(std::string_view name);  // Null where there is none.

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_SHAPE_H_
