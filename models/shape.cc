#include "models/shape.h"

#include <algorithm>

namespace fsdp {

std::optional<ModelShape> DefaultShape(std::string_view family) {
  if (family == "gpt2") return Gpt2Config();
  if (family == "llama") return LlamaConfig();
  return std::nullopt;
}

void FillDependent(ModelShape& shape, const std::function<bool(std::string_view)>& given) {
  std::visit([&](auto& config) { FillDependent(config, given); }, shape);
}

std::vector<ShapeMistake> Validate(const ModelShape& shape) {
  return std::visit([](const auto& config) { return Validate(config); }, shape);
}

int64_t NumParameters(const ModelShape& shape) {
  return std::visit([](const auto& config) { return NumParameters(config); }, shape);
}

int64_t VocabSize(const ModelShape& shape) {
  return std::visit([](const auto& config) { return config.vocab_size; }, shape);
}

int64_t HiddenSize(const ModelShape& shape) {
  return std::visit([](const auto& config) { return config.hidden_size; }, shape);
}

int64_t NumLayers(const ModelShape& shape) {
  return std::visit([](const auto& config) { return config.num_hidden_layers; }, shape);
}

int64_t NumHeads(const ModelShape& shape) {
  return std::visit([](const auto& config) { return config.num_attention_heads; }, shape);
}

int64_t MaxPositions(const ModelShape& shape) {
  return std::visit([](const auto& config) { return config.max_positions(); }, shape);
}

namespace {

int64_t Widest(const Gpt2Config& c) { return std::max(3 * c.hidden_size, c.intermediate_size); }
int64_t Widest(const LlamaConfig& c) {
  return std::max(
      {c.query_size() + 2 * c.key_value_size(), 2 * c.intermediate_size, c.hidden_size});
}

void Shrink(Gpt2Config& c) {
  c.hidden_size = c.num_attention_heads = c.intermediate_size = 1;
  c.layer_norm_epsilon = Gpt2Config().layer_norm_epsilon;
}
void Shrink(LlamaConfig& c) {
  c.hidden_size = c.intermediate_size = 1;
  c.num_attention_heads = c.num_key_value_heads = 1;
  c.head_dim = 2;
  c.rms_norm_eps = LlamaConfig().rms_norm_eps;
  c.rope_theta = LlamaConfig().rope_theta;
  c.rope_scaling = {};
}

}  // namespace

int64_t WidestRow(const ModelShape& shape) {
  return std::visit([](const auto& config) { return Widest(config); }, shape);
}

ModelShape SmallestAlike(const ModelShape& shape) {
  ModelShape small = shape;
  std::visit(
      [](auto& c) {
        c.num_hidden_layers = std::clamp<int64_t>(c.num_hidden_layers, 1, kMaxHiddenLayers);
        c.vocab_size = c.max_position_embeddings = 1;
        c.initializer_range = 0;
        VisitDropouts(c, [](const char*, double& rate) { rate = 0; });
        Shrink(c);
      },
      small);
  return small;
}

std::span<const ModelPreset> ModelPresets() {
  static const std::vector<ModelPreset> presets = [] {
    std::vector<ModelPreset> all;
    for (const Gpt2Preset& preset : Gpt2Presets()) all.push_back({preset.name, preset.config});
    for (const LlamaPreset& preset : LlamaPresets()) all.push_back({preset.name, preset.config});
    return all;
  }();
  return presets;
}

const ModelShape* FindModelPreset(std::string_view name) {
  for (const ModelPreset& preset : ModelPresets()) {
    if (preset.name == name) return &preset.shape;
  }
  return nullptr;
}

}  // namespace fsdp
