// The pieces that the schema (schema.cc) is built from: a Type says how one kind of value is read
// from YAML, written back and described. Types combine: ListOf(Integer(1)), Nullable(Text()),
// Map(section). The names are short, so they have a namespace of their own.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_TYPES_H_
#define FSDP_TRAIN_TRAINER_RECIPE_TYPES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/recipe/nearest.h"
#include "trainer/recipe/yaml_tree.h"

namespace fsdp::recipe {

using Json = nlohmann::ordered_json;

inline constexpr const char* kNotInThisVersion = "not in this version";

// Takes notes while trees are read: mistakes, where each key was written, which keys are unusable.
class RecipeReader {
 public:
  // `known`: every key of the recipe with its dots, for hints about keys in the wrong section.
  explicit RecipeReader(std::vector<std::string> known) : known_(std::move(known)) {}

  void Mistake(const Place& place, const std::string& key, const std::string& message);
  // "want ..., got ...".
  void Wrong(const YamlNode& node, const std::string& key, const std::string& want);
  // `siblings`: the keys that could stand there, `aliases`: other programs' names for some of them.
  void UnknownKey(const YamlNode::Entry& entry, const std::string& prefix,
                  const std::vector<std::string>& siblings,
                  const std::map<std::string, std::string>& aliases);
  // A map keeps the first place, a value takes the last: there it was decided.
  void Saw(const std::string& key, const Place& place, bool is_map);
  // What was written below this key no longer holds.
  void ForgetBelow(const std::string& key);

  // No rule about such a key is worth checking: it or a key above it has a mistake of its own.
  bool Unusable(const std::string& key) const;

  const std::map<std::string, Place>& places() const { return places_; }
  std::vector<RecipeMistake>& mistakes() { return mistakes_; }

 private:
  const std::vector<std::string> known_;
  std::vector<RecipeMistake> mistakes_;
  std::map<std::string, Place> places_;
  std::set<std::string> maps_;  // Keys in places_ that hold maps.
  std::set<std::string> unusable_;
};

// "5", "the text `5`", "a list": for messages.
std::string Describe(const YamlNode& node);

template <typename V>
struct Type {
  Json schema;  // JSON Schema, draft 2020-12.
  // Takes a node into `value`, or leaves it as it was, notes the mistakes and returns false. A map
  // changes the members it names alone: so later files override earlier ones.
  std::function<bool(const YamlNode& node, const std::string& key, RecipeReader& reader, V& value)>
      read;
  std::function<Json(const V& value)> write;  // Reading it again gives the same value.
};

// All integers fit in an int unless a larger `max` is given.
Type<int64_t> Integer(int64_t min, int64_t max = std::numeric_limits<int32_t>::max());

struct Interval {
  std::optional<double> at_least = std::nullopt;
  std::optional<double> above = std::nullopt;
  std::optional<double> at_most = std::nullopt;
  std::optional<double> below = std::nullopt;
  bool fp32 = false;  // Kernels read it in 32 bits: it is in the interval there too.
};
Type<double> Number(Interval interval);  // Finite.

Type<bool> Boolean();
Type<bool> OnlyFalse();    // true: not in this version.
Type<std::string> Text();  // Not empty.

// Index of the name. `is_later`: names that other versions know.
Type<size_t> OneOfNames(std::vector<std::string> names,
                        std::function<bool(const std::string&)> is_later);

inline std::function<bool(const std::string&)> Later(std::set<std::string> names) {
  return [names = std::move(names)](const std::string& name) { return names.count(name) > 0; };
}

// `from` and `to` must be inverse to each other.
template <typename V, typename Inner>
Type<V> Convert(Type<Inner> inner, std::function<V(const Inner&)> to,
                std::function<Inner(const V&)> from) {
  return {inner.schema,
          [inner, to, from](const YamlNode& node, const std::string& key, RecipeReader& reader,
                            V& value) {
            Inner read = from(value);
            if (!inner.read(node, key, reader, read)) return false;
            value = to(read);
            return true;
          },
          [inner, from](const V& value) { return inner.write(from(value)); }};
}

// An enum with NamesOf(). `later`: what interface.md knows and this version does not.
template <typename E>
Type<E> OneOf(std::function<bool(const std::string&)> is_later = Later({})) {
  std::vector<std::string> names;
  for (const std::string_view name : NamesOf(E{})) names.emplace_back(name);
  return Convert<E, size_t>(
      OneOfNames(std::move(names), std::move(is_later)),
      [](const size_t& index) { return static_cast<E>(index); },
      [](const E& value) { return static_cast<size_t>(value); });
}

template <typename V>
Type<std::optional<V>> Nullable(Type<V> inner) {
  const bool is_map = inner.schema.contains("properties");
  Json schema;
  if (inner.schema.contains("enum")) {
    schema = inner.schema;
    schema["enum"].push_back(nullptr);
  } else if (is_map) {
    schema["anyOf"] = {{{"type", "null"}}, inner.schema};
  } else {
    schema = inner.schema;
    schema["type"] = {inner.schema["type"], "null"};
  }
  return {schema,
          [inner, is_map](const YamlNode& node, const std::string& key, RecipeReader& reader,
                          std::optional<V>& value) {
            if (node.kind == YamlNode::Kind::kNull) {
              reader.ForgetBelow(key);
              value.reset();
              return true;
            }
            V read = value.value_or(V{});
            const bool good = inner.read(node, key, reader, read);
            // A map with mistakes is there nonetheless: what else it lacks is to be found too.
            if (good || is_map) value = std::move(read);
            return good;
          },
          [inner](const std::optional<V>& value) {
            return value ? inner.write(*value) : Json(nullptr);
          }};
}

// `size`: of exactly so many items.
template <typename V>
Type<std::vector<V>> ListOf(Type<V> inner, std::optional<size_t> size = std::nullopt) {
  Json schema = {{"type", "array"}, {"items", inner.schema}};
  if (size) schema["minItems"] = schema["maxItems"] = *size;
  return {schema,
          [inner, size](const YamlNode& node, const std::string& key, RecipeReader& reader,
                        std::vector<V>& value) {
            if (node.kind != YamlNode::Kind::kList || (size && node.items.size() != *size)) {
              reader.Wrong(node, key, size ? "a list of " + std::to_string(*size) : "a list");
              return false;
            }
            std::vector<V> read(node.items.size());
            bool good = true;
            for (size_t i = 0; i < read.size(); ++i) {
              V item{};
              good &= inner.read(*node.items[i], key + "[" + std::to_string(i) + "]", reader, item);
              read[i] = std::move(item);
            }
            if (good) value = std::move(read);
            return good;
          },
          [inner](const std::vector<V>& value) {
            Json list = Json::array();
            for (const V& item : value) list.push_back(inner.write(item));
            return list;
          }};
}

template <typename V>
Type<std::array<V, 2>> PairOf(Type<V> inner) {
  return Convert<std::array<V, 2>, std::vector<V>>(
      ListOf(std::move(inner), 2),
      [](const std::vector<V>& list) {
        return std::array<V, 2>{list[0], list[1]};
      },
      [](const std::array<V, 2>& pair) { return std::vector<V>(pair.begin(), pair.end()); });
}

// One key of a map that is read into a T.
template <typename T>
struct Field {
  std::string name;
  Json schema;
  std::function<void(const YamlNode&, const std::string& key, RecipeReader&, T&)> read;
  std::function<Json(const T&)> write;
  bool required = false;
  std::vector<std::string> aliases;  // Names elsewhere, for hints.

  Field Required() && {
    required = true;
    return std::move(*this);
  }
  Field Elsewhere(std::vector<std::string> names) && {
    aliases = std::move(names);
    return std::move(*this);
  }
};

template <typename T, typename V>
Field<T> Key(std::string name, V T::*member, Type<V> type, const std::string& description) {
  Json schema = {{"description", description}};
  schema.update(type.schema);
  return {std::move(name),
          std::move(schema),
          [member, type](const YamlNode& node, const std::string& key, RecipeReader& reader,
                         T& object) { type.read(node, key, reader, object.*member); },
          [member, type](const T& object) { return type.write(object.*member); },
          false,
          {}};
}

template <typename T>
struct Section {
  std::vector<Field<T>> fields;
  std::set<std::string> later = {};  // Keys that interface.md knows and this version does not.
};

template <typename T>
Type<T> Map(Section<T> section) {
  Json properties = Json::object(), required = Json::array();
  std::vector<std::string> names;
  std::map<std::string, std::string> aliases;
  for (const Field<T>& field : section.fields) {
    Json& property = properties[field.name] = field.schema;
    names.push_back(field.name);
    for (const std::string& alias : field.aliases) aliases[alias] = field.name;
    if (field.required) {
      required.push_back(field.name);
    } else if (property.value("type", Json()) != "object") {
      property["default"] = field.write(T{});
    }
  }
  Json schema = {
      {"type", "object"}, {"additionalProperties", false}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  return {std::move(schema),
          [section, names, aliases](const YamlNode& node, const std::string& key,
                                    RecipeReader& reader, T& object) {
            if (node.kind != YamlNode::Kind::kMap) {
              reader.Wrong(node, key, "a map");
              return false;
            }
            const std::string prefix = key.empty() ? "" : key + ".";
            const size_t before = reader.mistakes().size();
            // In the table's order, not the file's: model.preset goes before the fields it sets.
            for (const Field<T>& field : section.fields) {
              const YamlNode::Entry* entry = node.Find(field.name);
              if (entry == nullptr) continue;
              const bool is_map = entry->value->kind == YamlNode::Kind::kMap;
              reader.Saw(prefix + field.name, is_map ? entry->place : entry->value->place, is_map);
              field.read(*entry->value, prefix + field.name, reader, object);
            }
            for (const YamlNode::Entry& entry : node.entries) {
              if (std::find(names.begin(), names.end(), entry.key) != names.end()) continue;
              if (section.later.count(entry.key) > 0) {
                reader.Mistake(entry.place, prefix + entry.key, kNotInThisVersion);
              } else {
                reader.UnknownKey(entry, prefix, names, aliases);
              }
            }
            return reader.mistakes().size() == before;
          },
          [section](const T& object) {
            Json map = Json::object();
            for (const Field<T>& field : section.fields) map[field.name] = field.write(object);
            return map;
          }};
}

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_TYPES_H_
