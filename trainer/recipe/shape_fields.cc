#include "trainer/recipe/shape_fields.h"

#include <algorithm>
#include <array>
#include <utility>

#include "trainer/core/check.h"

namespace fsdp::recipe {

std::span<const ShapeField> ShapeFields() {
  using R = ModelRecipe;
  static const auto fields = std::to_array<ShapeField>({
      {"hidden_size", &R::hidden_size},
      {"intermediate_size", &R::intermediate_size},
      {"num_hidden_layers", &R::num_hidden_layers},
      {"num_attention_heads", &R::num_attention_heads},
      {"num_key_value_heads", &R::num_key_value_heads},
      {"head_dim", &R::head_dim},
      {"vocab_size", &R::vocab_size},
      {"max_position_embeddings", &R::max_position_embeddings},
      {"layer_norm_epsilon", &R::layer_norm_epsilon},
      {"rms_norm_eps", &R::rms_norm_eps},
      {"rope_theta", &R::rope_theta},
      {"rope_scaling", &R::rope_scaling},
      {"tie_word_embeddings", &R::tie_word_embeddings},
      {"attention_bias", &R::attention_bias},
      {"attention_output_bias", &R::attention_output_bias},
      {"mlp_bias", &R::mlp_bias},
      {"qk_norm", &R::qk_norm},
      {"initializer_range", &R::initializer_range},
  });
  return fields;
}

const ShapeField& FindShapeField(std::string_view name) {
  const std::span<const ShapeField> fields = ShapeFields();
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const ShapeField& field) { return field.name == name; });
  FSDP_CHECK(found != fields.end()) << "no shape field " << name;
  return *found;
}

std::span<const Dropout> Dropouts() {
  using R = ModelRecipe;
  static constexpr auto dropouts = std::to_array<Dropout>({
      {"embedding_dropout", &R::embedding_dropout},
      {"residual_dropout", &R::residual_dropout},
      {"attention_dropout", &R::attention_dropout},
  });
  return dropouts;
}

const std::optional<double>& DropoutOf(const ModelRecipe& model, std::string_view name) {
  const std::span<const Dropout> all = Dropouts();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Dropout& d) { return d.name == name; });
  FSDP_CHECK(found != all.end()) << "no dropout " << name;
  return model.*(found->member);
}

std::optional<double>& DropoutOf(ModelRecipe& model, std::string_view name) {
  return const_cast<std::optional<double>&>(DropoutOf(std::as_const(model), name));
}

}  // namespace fsdp::recipe
