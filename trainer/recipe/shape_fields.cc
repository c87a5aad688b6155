#include "trainer/recipe/shape_fields.h"

#include <algorithm>
#include <array>

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

}  // namespace fsdp::recipe
