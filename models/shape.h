// Questions about a model's shape, whichever its family.
#ifndef FSDP_TRAIN_MODELS_SHAPE_H_
#define FSDP_TRAIN_MODELS_SHAPE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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

// A model of this shape. Shared, so that a file that only holds a Model need not include it. Throws
// std::invalid_argument for a shape that Validate() complains about.
std::shared_ptr<Model> MakeModel(const ModelShape& shape);

// For a model of tokens, causal or not: aborts for another.
int64_t VocabSize(const ModelShape& shape);
// For a causal language model: aborts for another.
DecoderShape DecoderOf(const ModelShape& shape);
// Tokens that a sequence may have: kMaxPositions where there are no positions.
int64_t MaxPositions(const ModelShape& shape);
// The smallest shape whose model has parameters of the same names; it can always be built.
ModelShape SmallestAlike(const ModelShape& shape);

// Published sizes, family by family.
const std::vector<ModelPreset>& ModelPresets();
const ModelShape* FindModelPreset(std::string_view name);  // Null where there is none.

// The shape as a checkpoint keeps it: a JSON object of the recipe's names.
//   {"family": "...", "hidden_size": 4096, ..., "rope_scaling": {"type": "default", ...}, ...}
// and those of its dropouts that are not 0.
std::string ShapeToJson(const ModelShape& shape);
// All fields of the family must be there but dropouts and free ones. Throws CheckpointError that
// begins with `where` the text is from; the shape passes Validate().
ModelShape ShapeFromJson(const std::string& text, const std::string& where);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_SHAPE_H_
