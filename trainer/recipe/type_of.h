// For those who define a type of their own (types.h); all others do without the whole of Json.
// Tests: tests/trainer/recipe/schema_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_TYPE_OF_H_
#define FSDP_TRAIN_TRAINER_RECIPE_TYPE_OF_H_

#include <nlohmann/json.hpp>
#include <string>

#include "trainer/recipe/types.h"

namespace fsdp::recipe {

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

template <typename V>
Json Type<V>::Write(const V& value) const {
  return (*this)->Write(&value);
}

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_TYPE_OF_H_
