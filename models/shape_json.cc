#include "models/shape_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWhat = "the checkpoint's model shape: ";

Json Write(const FieldMap& map, const MapRange& range) {
  Json json = Json::object();
  for (const FieldMember& member : range.members) {
    const auto at = map.find(member.name);
    json[member.name] = nullptr;
    if (at != map.end()) std::visit([&](const auto& v) { json[member.name] = v; }, at->second);
  }
  return json;
}

Json Write(const FieldValue& value, const Field& field) {
  if (const auto* map = std::get_if<FieldMap>(&value)) {
    return Write(*map, std::get<MapRange>(field.range));
  }
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, FieldMap>)
          return {};
        else
          return v;
      },
      value);
}

FieldScalar ReadMember(const Json& json, const FieldMember& member, const std::string& field) {
  if (std::holds_alternative<IntegerRange>(member.range)) return json.get<int64_t>();
  if (std::holds_alternative<RealRange>(member.range)) return json.get<double>();
  if (std::holds_alternative<BooleanRange>(member.range)) return json.get<bool>();
  const std::string name = json;
  const std::vector<std::string>& names = std::get<NameRange>(member.range).names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw CheckpointError(kWhat + field + ": no " + member.name + " " + name);
  }
  return name;
}

// `value`: of the field's type.
void Read(const Json& json, const Field& field, FieldValue& value) {
  if (auto* map = std::get_if<FieldMap>(&value)) {
    map->clear();
    for (const FieldMember& member : std::get<MapRange>(field.range).members) {
      const Json& given = json.at(member.name);
      const bool is_name = std::holds_alternative<NameRange>(member.range);
      if (!given.is_null() || is_name) (*map)[member.name] = ReadMember(given, member, field.name);
    }
    return;
  }
  std::visit(
      [&](auto& v) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(v)>, FieldMap>) json.get_to(v);
      },
      value);
}

}  // namespace

std::string ShapeToJson(const ModelShape& shape) {
  Json json{{"family", FamilyOf(shape)}};
  for (const Field& field : shape.family().fields()) {
    const FieldValue value = *shape.Find(field.name);
    if (field.is_dropout && std::get<double>(value) == 0) continue;
    json[field.name] = Write(value, field);
  }
  return json.dump();
}

ModelShape ShapeFromJson(const std::string& text) {
  ModelShape shape;
  try {
    const Json json = Json::parse(text);
    const std::string family = json.at("family");
    const std::optional<ModelShape> known = DefaultShape(family);
    if (!known) throw CheckpointError(kWhat + ("no family " + family));
    shape = *known;
    for (const Field& field : shape.family().fields()) {
      if (field.is_dropout && !json.contains(field.name)) continue;
      FieldValue value = *shape.Find(field.name);
      Read(json.at(field.name), field, value);
      shape.Set(field.name, value);
    }
  } catch (const Json::exception& error) {
    throw CheckpointError(kWhat + std::string(error.what()));
  }
  for (const ShapeMistake& mistake : Validate(shape)) {
    throw CheckpointError(kWhat + mistake.field + ": " + mistake.message);
  }
  return shape;
}

}  // namespace fsdp
