// The shape of a model of any family: what recipes name, checkpoints keep and MakeModel() builds.
#ifndef FSDP_TRAIN_MODELS_SHAPE_H_
#define FSDP_TRAIN_MODELS_SHAPE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "models/gpt2/config.h"
#include "models/llama/config.h"

namespace fsdp {

using ModelShape = std::variant<Gpt2Config, LlamaConfig>;

// "gpt2" and "llama", as recipes have them, in the variant's order.
inline constexpr std::array<std::string_view, std::variant_size_v<ModelShape>> kFamilies = {
    "gpt2", "llama"};
inline std::string_view FamilyOf(const ModelShape& shape) { return kFamilies[shape.index()]; }
// The family's defaults; empty where there is no such family.
std::optional<ModelShape> DefaultShape(std::string_view family);

// Calls visit(name, field) for each field of the shape's family.
template <typename Visit>
void VisitFields(ModelShape& shape, const Visit& visit) {
  std::visit([&](auto& config) { VisitFields(config, visit); }, shape);
}
template <typename Visit>
void VisitFields(const ModelShape& shape, const Visit& visit) {
  std::visit([&](const auto& config) { VisitFields(config, visit); }, shape);
}
// The same for its dropouts, which say how a model is trained: no part of the shape.
template <typename Visit>
void VisitDropouts(ModelShape& shape, const Visit& visit) {
  std::visit([&](auto& config) { VisitDropouts(config, visit); }, shape);
}
template <typename Visit>
void VisitDropouts(const ModelShape& shape, const Visit& visit) {
  std::visit([&](const auto& config) { VisitDropouts(config, visit); }, shape);
}
// Fields that nobody has given follow those that somebody has.
void FillDependent(ModelShape& shape, const std::function<bool(std::string_view)>& given);

std::vector<ShapeMistake> Validate(const ModelShape& shape);
int64_t NumParameters(const ModelShape& shape);

// What all families have.
int64_t VocabSize(const ModelShape& shape);
int64_t HiddenSize(const ModelShape& shape);
int64_t NumLayers(const ModelShape& shape);
int64_t NumHeads(const ModelShape& shape);
int64_t MaxPositions(const ModelShape& shape);  // Tokens that a sequence may have.
int64_t WidestRow(const ModelShape& shape);     // Elements of a token's largest activation.
// The same names of parameters, in the smallest shape that has them.
ModelShape SmallestAlike(const ModelShape& shape);

struct ModelPreset {
  std::string_view name;
  ModelShape shape;
};
// Published sizes, by family.
std::span<const ModelPreset> ModelPresets();
const ModelShape* FindModelPreset(std::string_view name);  // Null where there is none.

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_SHAPE_H_
