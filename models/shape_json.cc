#include "models/shape_json.h"

#include <nlohmann/json.hpp>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWhat = "the checkpoint's model shape: ";

template <typename T>
Json Write(const T& value) {
  return value;
}
template <typename T>
Json Write(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
Json Write(const RopeScaling& scaling) {
  Json json{{"type", NamesOf(scaling.type)[static_cast<size_t>(scaling.type)]}};
  VisitFields(scaling, [&](const char* name, const auto& value) { json[name] = Write(value); });
  return json;
}

template <typename T>
void Read(const Json& json, T& value) {
  json.get_to(value);
}
template <typename T>
void Read(const Json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) value = json.get<T>();
}
void Read(const Json& json, RopeScaling& scaling) {
  const std::string type = json.at("type");
  constexpr auto kNames = NamesOf(RopeScaling::Type{});
  size_t index = 0;
  while (index < kNames.size() && kNames[index] != type) ++index;
  if (index == kNames.size()) throw CheckpointError(kWhat + ("rope_scaling: no type " + type));
  scaling.type = static_cast<RopeScaling::Type>(index);
  VisitFields(scaling, [&](const char* name, auto& value) { Read(json.at(name), value); });
}

}  // namespace

std::string ShapeToJson(const ModelShape& shape) {
  Json json{{"family", FamilyOf(shape)}};
  VisitFields(shape, [&](const char* name, const auto& value) { json[name] = Write(value); });
  VisitDropouts(shape, [&](const char* name, double rate) {
    if (rate > 0) json[name] = rate;
  });
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
    VisitFields(shape, [&](const char* name, auto& value) { Read(json.at(name), value); });
    VisitDropouts(shape, [&](const char* name, double& rate) { rate = json.value(name, 0.0); });
  } catch (const Json::exception& error) {
    throw CheckpointError(kWhat + std::string(error.what()));
  }
  for (const ShapeMistake& mistake : Validate(shape)) {
    throw CheckpointError(kWhat + mistake.field + ": " + mistake.message);
  }
  return shape;
}

}  // namespace fsdp
