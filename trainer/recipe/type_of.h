// For those who define a type of their own (types.h).
// Tests: tests/trainer/recipe/schema_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_TYPE_OF_H_
#define FSDP_TRAIN_TRAINER_RECIPE_TYPE_OF_H_

#include <initializer_list>

#include "trainer/recipe/types.h"

namespace fsdp::recipe {

inline Json AnyOfSchemas(std::initializer_list<Json> schemas) {
  return Json::Object({{"anyOf", Json::List(schemas)}});
}
inline Json EnumSchema(std::initializer_list<Json> values) {
  return Json::Object({{"enum", Json::List(values)}});
}

// A base of types whose values have one C++ type.
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

#endif  // FSDP_TRAIN_TRAINER_RECIPE_TYPE_OF_H_
