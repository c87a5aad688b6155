#include "models/shape.h"

#include <algorithm>
#include <set>
#include <type_traits>

#include "models/family.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/json_tree.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

constexpr JsonErrors kErrors{
    .raise = [](const std::string& message) { throw CheckpointError(message); }};

JsonTree Write(const FieldMap& map, const MapRange& range) {
  JsonTree json = JsonTree::Object();
  for (const FieldMember& member : range.members) {
    const auto at = map.find(member.name);
    json[member.name] = nullptr;
    if (at != map.end()) std::visit([&](const auto& v) { json[member.name] = v; }, at->second);
  }
  return json;
}

JsonTree Write(const FieldValue& value, const Field& field) {
  if (const auto* map = std::get_if<FieldMap>(&value)) {
    return Write(*map, std::get<MapRange>(field.range));
  }
  return std::visit(
      [](const auto& v) -> JsonTree {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, FieldMap>)
          return {};
        else
          return v;
      },
      value);
}

std::string ReadName(const JsonValue& json, const NameRange& range) {
  if (std::find(range.names.begin(), range.names.end(), json.Text()) == range.names.end()) {
    json.Refuse("is none that this version knows, got " + json.Show());
  }
  return json.Text();
}

FieldScalar ReadMember(const JsonValue& json, const FieldMember& member) {
  if (std::holds_alternative<IntegerRange>(member.range)) return json.Integer();
  if (std::holds_alternative<RealRange>(member.range)) return json.Number();
  if (std::holds_alternative<BooleanRange>(member.range)) return json.Boolean();
  return ReadName(json, std::get<NameRange>(member.range));
}

void Read(const JsonValue& json, int64_t& value) { value = json.Integer(); }
void Read(const JsonValue& json, double& value) { value = json.Number(); }
void Read(const JsonValue& json, bool& value) { value = json.Boolean(); }
template <typename T>
void Read(const JsonValue& json, std::vector<T>& values) {
  values.clear();
  for (const JsonValue& element : json.Elements()) Read(element, values.emplace_back());
}

// `value`: of the field's type.
void Read(const JsonValue& json, const Field& field, FieldValue& value) {
  if (auto* map = std::get_if<FieldMap>(&value)) {
    map->clear();
    for (const FieldMember& member : std::get<MapRange>(field.range).members) {
      const JsonValue given = json.At(member.name);
      const bool is_name = std::holds_alternative<NameRange>(member.range);
      if (is_name || json.Find(member.name)) (*map)[member.name] = ReadMember(given, member);
    }
    return;
  }
  std::visit(
      [&](auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          v = ReadName(json, std::get<NameRange>(field.range));
        } else if constexpr (!std::is_same_v<T, FieldMap>) {
          Read(json, v);
        }
      },
      value);
}

}  // namespace

std::string ShapeToJson(const ModelShape& shape) {
  JsonTree json = JsonTree::Object({{"family", FamilyOf(shape)}});
  for (const Field& field : shape.family().fields()) {
    const FieldValue value = *shape.Find(field.name);
    if (field.is_dropout && std::get<double>(value) == 0) continue;
    json[field.name] = Write(value, field);
  }
  return json.Dump();
}

ModelShape ShapeFromJson(const std::string& text, const std::string& where) {
  const JsonValue json = ParseJson(text, where, kErrors);
  const JsonValue family = json.At("family");
  std::optional<ModelShape> shape = DefaultShape(family.Text());
  if (!shape) family.Refuse("is none that this version knows, got " + family.Show());
  for (const Field& field : shape->family().fields()) {
    if ((field.is_dropout || field.is_free) && !json.Has(field.name)) continue;
    FieldValue value = *shape->Find(field.name);
    Read(json.At(field.name), field, value);
    shape->Set(field.name, value);
  }
  for (const ShapeMistake& mistake : Validate(*shape)) {
    json.Refuse(mistake.field, mistake.message);
  }
  return *std::move(shape);
}

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

std::shared_ptr<Model> MakeModel(const ModelShape& shape) { return shape.family().Make(shape); }

int64_t NumParameters(const ModelShape& shape) {
  const std::shared_ptr<Model> model = MakeModel(shape);
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
