#include "trainer/loop/initial_weights.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_weights.h"
#include "trainer/checkpoint/hf_weights.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

bool IsCheckpoint(const std::string& directory) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(directory)) {
    throw CheckpointError("model.init_from: " + directory + " is not a directory");
  }
  const bool ours = fs::exists(directory + "/manifest.json");
  if (!ours && !fs::exists(directory + "/config.json")) {
    throw CheckpointError("model.init_from: " + directory +
                          " holds neither a config.json nor a manifest.json");
  }
  return ours;
}

// The fields in one place: written and read alike.
template <typename Visit>
void VisitShape(Gpt2Config& shape, const Visit& visit) {
  visit("hidden_size", shape.hidden_size);
  visit("intermediate_size", shape.intermediate_size);
  visit("num_hidden_layers", shape.num_hidden_layers);
  visit("num_attention_heads", shape.num_attention_heads);
  visit("vocab_size", shape.vocab_size);
  visit("max_position_embeddings", shape.max_position_embeddings);
  visit("layer_norm_epsilon", shape.layer_norm_epsilon);
  visit("initializer_range", shape.initializer_range);
}

}  // namespace

std::string ShapeToJson(const Gpt2Config& shape) {
  nlohmann::ordered_json json{{"family", "gpt2"}};
  Gpt2Config copy = shape;
  VisitShape(copy, [&](const char* name, auto& value) { json[name] = value; });
  return json.dump();
}

Gpt2Config ShapeFromJson(const std::string& text) {
  Gpt2Config shape;
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("family") != "gpt2") throw CheckpointError("a model family other than gpt2");
    VisitShape(shape, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(std::string("the checkpoint's model shape: ") + error.what());
  }
  for (const ShapeMistake& mistake : Validate(shape)) {
    throw CheckpointError("the checkpoint's model shape: " + mistake.field + ": " +
                          mistake.message);
  }
  return shape;
}

Gpt2Config ReadInitialShape(const std::string& directory) {
  if (IsCheckpoint(directory)) return ShapeFromJson(ReadCheckpointMeta(directory).config);
  return ReadHfGpt2Config(directory);
}

Executor::FillParameter OpenInitialWeights(const std::string& directory) {
  // Ours hold parameters, theirs slices.
  if (IsCheckpoint(directory)) {
    return [weights = std::make_shared<CheckpointWeights>(directory)](
               const Parameter& parameter, int64_t begin, std::span<float> values) {
      weights->Fill(parameter.name(), parameter.shape(), begin, values);
    };
  }
  return [weights = std::make_shared<HfWeights>(directory)](
             const Parameter& parameter, int64_t begin, std::span<float> values) {
    for (const SlicePiece& piece :
         SlicePieces(parameter, begin, static_cast<int64_t>(values.size()))) {
      weights->Fill(piece.slice->name, piece.slice->shape, piece.begin,
                    values.subspan(piece.at, piece.count));
    }
  };
}

}  // namespace fsdp
