// The pieces that the schema (schema.cc) is built from: a Type says how one kind of value is read
// from YAML, written back and described. Types combine (containers.h): ListOf(Integer(1)),
// Nullable(Text()), Map<T>({Key(...), ...}). The names are short, so they have a namespace of their
// own.
//
// A type's behaviour is one class that takes values as void*; Type<V> is a handle that ties it to
// the C++ type. So a key is data and costs the compiler two calls. A closure for each key took 25 s
// to compile at -O1, for code that runs once.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_TYPES_H_
#define FSDP_TRAIN_TRAINER_RECIPE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/core/json_tree.h"
#include "trainer/recipe/reader.h"
#include "trainer/recipe/yaml_tree.h"

namespace fsdp::recipe {

using Json = JsonTree;

class ValueType {
 public:
  virtual ~ValueType() = default;
  virtual Json Schema() const = 0;  // JSON Schema, draft 2020-12.
  // Takes a node into `value`, or leaves it as it was, notes the mistakes and returns false. A map
  // changes the members it names alone: so later files override earlier ones.
  virtual bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
                    void* value) const = 0;
  virtual Json Write(const void* value) const = 0;  // Reading it again gives the same value.
};

// Shares a ValueType. The calls are not inlined, for the compiler's sake.
class AnyType {
 public:
  explicit AnyType(std::shared_ptr<const ValueType> type);
  AnyType(const AnyType&);
  AnyType& operator=(const AnyType&) = delete;
  ~AnyType();

  const ValueType* operator->() const { return type_.get(); }

 private:
  const std::shared_ptr<const ValueType> type_;
};

template <typename V>
class Type : public AnyType {
 public:
  using Value = V;

  // The type's values must be Vs.
  explicit Type(std::shared_ptr<const ValueType> type) : AnyType(std::move(type)) {}
  explicit Type(const AnyType& type) : AnyType(type) {}

  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader, V& value) const {
    return (*this)->Read(node, key, reader, &value);
  }
  Json Write(const V& value) const { return (*this)->Write(&value); }
};

// All integers fit in an int unless a larger `max` is given.
Type<int64_t> Integer(int64_t min, int64_t max = std::numeric_limits<int32_t>::max());

// One of these, in this order in messages and schema.
Type<int64_t> OneOfIntegers(std::vector<int64_t> values);

// At least 1: an integer, or with a unit: "10GB" is 10^10 bytes, "1.5GiB" 1.5 x 2^30. Written as an
// integer.
Type<int64_t> Bytes();

// At least 1 second: an integer, or with a unit: "90m", "1.5h". Written as an integer.
Type<int64_t> Duration();

struct Interval {
  std::optional<double> at_least = std::nullopt;
  std::optional<double> above = std::nullopt;
  std::optional<double> at_most = std::nullopt;
  std::optional<double> below = std::nullopt;
  bool fp32 = false;  // Kernels read it in 32 bits: it is in the interval there too.
};
Type<double> Number(const Interval& interval);  // Finite.

Type<bool> Boolean();
Type<std::string> Text();  // Not empty.
Type<std::string> Path();  // Text() in which `~` is a home directory (core/paths.h).

// Names that another version knows and this one does not, or that are refused because of `why`.
struct Later {
  Later() = default;
  Later(std::initializer_list<const char*> list);
  explicit Later(std::vector<std::string> list);

  std::vector<std::string> names;
  std::string why = "not in this version";
};

Type<std::string> OneOfTexts(std::vector<std::string> names, const Later& later = Later());

// Access to an enum whose type is not known here.
struct EnumOps {
  size_t (*get)(const void* value);
  void (*set)(void* value, size_t index);
};
AnyType OneOfNames(std::vector<std::string> names, const Later& later, const EnumOps& ops);

// An enum whose first enumerators have these names.
template <typename E>
Type<E> OneOf(std::vector<std::string> names, const Later& later) {
  static constexpr EnumOps kOps = {
      [](const void* value) { return static_cast<size_t>(*static_cast<const E*>(value)); },
      [](void* value, size_t index) { *static_cast<E*>(value) = static_cast<E>(index); }};
  return Type<E>(OneOfNames(std::move(names), later, kOps));
}

// An enum with NamesOf(). `later`: names that are known and not in this version.
template <typename E>
Type<E> OneOf(const Later& later = Later()) {
  static constexpr auto kNames = NamesOf(E{});
  return OneOf<E>(std::vector<std::string>(kNames.begin(), kNames.end()), later);
}

inline Json AnyOfSchemas(std::initializer_list<Json> schemas) {
  return Json::Object({{"anyOf", Json::List(schemas)}});
}
inline Json EnumSchema(std::initializer_list<Json> values) {
  return Json::Object({{"enum", Json::List(values)}});
}

// For types of another form: a base of types whose values have one C++ type.
template <typename V>
class TypeOf : public ValueType {
 public:
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* value) const final {
    return ReadValue(node, key, reader, *static_cast<V*>(value));
  }
  Json Write(const void* value) const final { return WriteValue(*static_cast<const V*>(value)); }

 private:
  virtual bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                         V& value) const = 0;
  virtual Json WriteValue(const V& value) const = 0;
};

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_TYPES_H_
