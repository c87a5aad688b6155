// Types of values that hold others: optionals, lists, maps with a table of keys, and maps with free
// keys.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_CONTAINERS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_CONTAINERS_H_

#include <array>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/recipe/types.h"

namespace fsdp::recipe {

// Operations on optionals, lists and maps whose values' types are not known here.
struct OptionalOps {
  const void* (*get)(const void* optional);  // Null where it is empty.
  void* (*emplace)(void* optional);
  void (*reset)(void* optional);
};
struct ListOps {
  size_t (*size)(const void* list);
  const void* (*at)(const void* list, size_t i);
  std::shared_ptr<void> (*make)(size_t size);
  void (*move)(void* to, void* from);
};

struct NamedOps {
  std::vector<std::string> (*names)(const void* map);
  const void* (*at)(const void* map, const std::string& name);
  std::shared_ptr<void> (*make)();
  void* (*add)(void* map, const std::string& name);
  void (*merge)(void* to, void* from);  // Entries of `from` replace those of their names.
};

AnyType NullableOf(const AnyType& inner, const OptionalOps& ops);
// `size`: the list has exactly this many items.
AnyType ListOfSize(const AnyType& item, std::optional<size_t> size, const ListOps& ops);
AnyType NamedOf(const AnyType& item, const NamedOps& ops);

template <typename V>
Type<std::optional<V>> Nullable(const Type<V>& inner) {
  using Optional = std::optional<V>;
  static constexpr OptionalOps kOps = {
      [](const void* optional) -> const void* {
        const Optional& value = *static_cast<const Optional*>(optional);
        return value ? &*value : nullptr;
      },
      [](void* optional) -> void* { return &static_cast<Optional*>(optional)->emplace(); },
      [](void* optional) { static_cast<Optional*>(optional)->reset(); }};
  return Type<Optional>(NullableOf(inner, kOps));
}

template <typename V>
Type<std::vector<V>> ListOf(const Type<V>& item) {
  using List = std::vector<V>;
  static constexpr ListOps kOps = {
      [](const void* list) { return static_cast<const List*>(list)->size(); },
      [](const void* list, size_t i) -> const void* {
        return &(*static_cast<const List*>(list))[i];
      },
      [](size_t size) -> std::shared_ptr<void> { return std::make_shared<List>(size); },
      [](void* to, void* from) { static_cast<List*>(to)->swap(*static_cast<List*>(from)); }};
  return Type<List>(ListOfSize(item, std::nullopt, kOps));
}

template <size_t n, typename V>
Type<std::array<V, n>> ArrayOf(const Type<V>& item) {
  using Array = std::array<V, n>;
  static constexpr ListOps kOps = {
      [](const void*) { return n; },
      [](const void* list, size_t i) -> const void* {
        return &(*static_cast<const Array*>(list))[i];
      },
      [](size_t) -> std::shared_ptr<void> { return std::make_shared<Array>(); },
      [](void* to, void* from) { *static_cast<Array*>(to) = *static_cast<Array*>(from); }};
  return Type<Array>(ListOfSize(item, n, kOps));
}

// A map whose keys are free, but not empty.
template <typename V>
Type<std::map<std::string, V>> Named(const Type<V>& item) {
  using Names = std::map<std::string, V>;
  static constexpr NamedOps kOps = {
      [](const void* map) {
        std::vector<std::string> names;
        for (const auto& [name, value] : *static_cast<const Names*>(map)) names.push_back(name);
        return names;
      },
      [](const void* map, const std::string& name) -> const void* {
        return &static_cast<const Names*>(map)->at(name);
      },
      []() -> std::shared_ptr<void> { return std::make_shared<Names>(); },
      [](void* map, const std::string& name) -> void* {
        return &(*static_cast<Names*>(map))[name];
      },
      [](void* to, void* from) {
        for (auto& [name, value] : *static_cast<Names*>(from)) {
          (*static_cast<Names*>(to))[name] = std::move(value);
        }
      }};
  return Type<Names>(NamedOf(item, kOps));
}

// One key of a map that is read into an object.
struct AnyField {
  AnyField(const char* name, const char* description, const AnyType& type, size_t offset);
  AnyField(const AnyField&);
  ~AnyField();

  std::string name, description;
  AnyType type;
  size_t offset;  // Bytes from the begin of the object, or of its part, to the member.
  // The part of the object that has the member; null: the object itself.
  const void* (*part)(const void* object) = nullptr;
  void* (*change_part)(void* object) = nullptr;
  bool required = false;
  std::vector<std::string> aliases;  // Names in other programs, for hints.
  // Called when the key's node has been read, well or not.
  std::function<void(const YamlNode& node, void* object)> then;
};

template <typename T>
struct KeyOf : AnyField {
  using AnyField::AnyField;

  KeyOf&& Required() && {
    required = true;
    return std::move(*this);
  }
  KeyOf&& Elsewhere(const std::vector<std::string>& names) && {
    aliases = names;
    return std::move(*this);
  }
  KeyOf&& Then(void (*f)(const YamlNode& node, T& object)) && {
    then = [f](const YamlNode& node, void* object) { f(node, *static_cast<T*>(object)); };
    return std::move(*this);
  }
};

// A T with every member at its default.
template <typename T>
const T& DefaultOf() {
  static const T object{};
  return object;
}

template <typename T, typename V>
KeyOf<T> Key(const char* name, V T::*member, const Type<V>& type, const char* description) {
  const T& object = DefaultOf<T>();
  const auto* begin = reinterpret_cast<const std::byte*>(&object);
  const auto* at = reinterpret_cast<const std::byte*>(&(object.*member));
  return KeyOf<T>(name, description, type, static_cast<size_t>(at - begin));
}

// The keys of a map.
struct AnySection {
  std::vector<AnyField> fields;
  std::vector<std::string> one_required;  // At least one of these must be given.
  // Called before a node is read.
  std::function<void(const YamlNode& node, void* object)> before;
};
AnyType MapOf(AnySection section, const void* defaults);  // `defaults` must outlive the type.

template <typename T>
struct Section : AnySection {
  Section(std::initializer_list<KeyOf<T>> list) {
    for (const KeyOf<T>& field : list) Add(field);
  }
  void Add(const KeyOf<T>& field) { fields.push_back(field); }
};

template <typename T>
Type<T> Map(const Section<T>& section) {
  return Type<T>(MapOf(section, &DefaultOf<T>()));
}

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_CONTAINERS_H_
