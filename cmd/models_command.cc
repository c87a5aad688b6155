#include "cmd/models_command.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>

#include "models/make_model.h"
#include "models/shape.h"
#include "trainer/engine/step_operations.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

constexpr int64_t kLongest = 1024;  // Sequence whose FLOPs are counted.

// "-" where its family has no such field.
std::string FieldOf(const ModelShape& shape, const char* name) {
  const std::optional<FieldValue> value = shape.Find(name);
  const auto* number = value ? std::get_if<int64_t>(&*value) : nullptr;
  return number ? std::to_string(*number) : "-";
}

void PrintTable() {
  std::printf("%-16s %-7s %7s %7s %6s %11s %10s %14s\n", "preset", "family", "layers", "hidden",
              "heads", "vocabulary", "positions", "parameters");
  for (const ModelPreset& preset : ModelPresets()) {
    const ModelShape& shape = preset.shape;
    std::printf("%-16s %-7s %7s %7s %6s %11s %10s %14lld\n", std::string(preset.name).c_str(),
                std::string(FamilyOf(shape)).c_str(), FieldOf(shape, "num_hidden_layers").c_str(),
                FieldOf(shape, "hidden_size").c_str(),
                FieldOf(shape, "num_attention_heads").c_str(), FieldOf(shape, "vocab_size").c_str(),
                FieldOf(shape, "max_position_embeddings").c_str(),
                static_cast<long long>(NumParameters(shape)));
  }
}

void PrintJson() {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const ModelPreset& preset : ModelPresets()) {
    const std::unique_ptr<Model> model = MakeModel(preset.shape);
    const int64_t length = std::min(kLongest, MaxPositions(preset.shape));
    const bool of_sequences = model->Inputs(length) != model->Inputs(length / 2);
    nlohmann::ordered_json one = {{"name", preset.name},
                                  {"family", FamilyOf(preset.shape)},
                                  {"parameters", NumParameters(preset.shape)},
                                  {"seq_len", nullptr},
                                  {"flops_per_sample", FlopsPerSample(*model, length)}};
    if (of_sequences) one["seq_len"] = length;
    models.push_back(std::move(one));
  }
  std::printf("%s\n", models.dump(2).c_str());
}

}  // namespace

void AddModelsCommand(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("models", "List the presets with their numbers of parameters");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json,
                    "One JSON list, with the FLOPs of a sample, forward and backward. A sample "
                    "is an image, or 1,024 tokens or as many as the model has positions");
  command->callback([json] { *json ? PrintJson() : PrintTable(); });
}

}  // namespace fsdp
