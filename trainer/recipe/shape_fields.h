// The shape fields of all families as members of ModelRecipe, by name, so that whatever is true of
// all of them is said once.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_SHAPE_FIELDS_H_
#define FSDP_TRAIN_TRAINER_RECIPE_SHAPE_FIELDS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "trainer/recipe/recipe.h"

namespace fsdp::recipe {

struct ShapeField {
  template <typename T>
  using Member = std::optional<T> ModelRecipe::*;

  std::string_view name;
  std::variant<Member<int64_t>, Member<double>, Member<bool>, Member<RopeScaling>> member;

  bool IsGiven(const ModelRecipe& model) const {
    return std::visit([&](auto m) { return (model.*m).has_value(); }, member);
  }
  void Reset(ModelRecipe& model) const {
    std::visit([&](auto m) { (model.*m).reset(); }, member);
  }
};

// Each name once.
std::span<const ShapeField> ShapeFields();

// FSDP_CHECKs that there is such a field.
const ShapeField& FindShapeField(std::string_view name);

// The member for a field of a family's config: the type is the config's.
template <typename T>
std::optional<T>& MemberFor(ModelRecipe& model, std::string_view name, const T&) {
  return model.*std::get<ShapeField::Member<T>>(FindShapeField(name).member);
}
template <typename T>
const std::optional<T>& MemberFor(const ModelRecipe& model, std::string_view name, const T&) {
  return model.*std::get<ShapeField::Member<T>>(FindShapeField(name).member);
}

// The dropouts of all families, which are no part of a shape.
struct Dropout {
  std::string_view name;
  std::optional<double> ModelRecipe::*member;
};
std::span<const Dropout> Dropouts();
// FSDP_CHECKs that there is such a dropout.
std::optional<double>& DropoutOf(ModelRecipe& model, std::string_view name);
const std::optional<double>& DropoutOf(const ModelRecipe& model, std::string_view name);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_SHAPE_FIELDS_H_
