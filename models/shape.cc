#include "models/shape.h"

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
