#include "models/shape.h"

#include <set>

#include "models/families.h"
#include "trainer/core/check.h"
#include "trainer/nn/model.h"

namespace fsdp {

const ModelFamily* FindFamily(std::string_view name) {
  for (const ModelFamily* family : Families()) {
    if (family->name() == name) return family;
  }
  return nullptr;
}

std::optional<ModelShape> DefaultShape(std::string_view family) {
  const ModelFamily* const found = FindFamily(family);
  if (found == nullptr) return std::nullopt;
  return found->Standard();
}

std::vector<ShapeMistake> Validate(const ModelShape& shape) {
  return shape.family().Validate(shape);
}

int64_t NumParameters(const ModelShape& shape) {
  const std::shared_ptr<Model> model = shape.family().Make(shape);
  std::set<const Parameter*> seen;
  int64_t elements = 0;
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* parameter : segment.parameters) {
      if (seen.insert(parameter).second) elements += parameter->shape().NumElements();
    }
  }
  return elements;
}

DecoderShape DecoderOf(const ModelShape& shape) {
  const std::optional<DecoderShape> decoder = shape.family().Decoder(shape);
  FSDP_CHECK(decoder.has_value()) << "a `" << FamilyOf(shape) << "` is no language model";
  return *decoder;
}

int64_t VocabSize(const ModelShape& shape) {
  const std::optional<FieldValue> size = shape.Find("vocab_size");
  FSDP_CHECK(size.has_value()) << "a `" << FamilyOf(shape) << "` has no vocabulary";
  return std::get<int64_t>(*size);
}
int64_t MaxPositions(const ModelShape& shape) {
  const std::optional<DecoderShape> decoder = shape.family().Decoder(shape);
  return decoder ? decoder->max_positions : kMaxPositions;
}

ModelShape SmallestAlike(const ModelShape& shape) { return shape.family().SmallestAlike(shape); }

const std::vector<ModelPreset>& ModelPresets() {
  static const std::vector<ModelPreset> presets = [] {
    std::vector<ModelPreset> all;
    for (const ModelFamily* family : Families()) {
      all.insert(all.end(), family->presets().begin(), family->presets().end());
    }
    return all;
  }();
  return presets;
}

const ModelShape* FindModelPreset(std::string_view name) {
  for (const ModelPreset& preset : ModelPresets()) {
    if (preset.name == name) return &preset.shape;
  }
  return nullptr;
}

}  // namespace fsdp
