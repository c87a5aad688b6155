#include "trainer/recipe/recipe.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "trainer/core/errors.h"

namespace fsdp {

std::string Recipe::Mistake(const std::string& key, const std::string& message) const {
  const auto place = places.find(key);
  return (place == places.end() ? "" : place->second + ": ") + key + ": " + message;
}

bool Recipe::operator==(const Recipe& other) const {
  const auto parts = [](const Recipe& r) {
    return std::tie(r.run, r.model, r.data, r.train, r.eval, r.optimizer, r.schedule, r.fsdp,
                    r.checkpoint, r.log);
  };
  return parts(*this) == parts(other);
}

std::span<const SourceRecipe> DataRecipe::TrainSources() const {
  if (const auto* one = std::get_if<SourceRecipe>(&train)) return {one, 1};
  return std::get<std::vector<SourceRecipe>>(train);
}

std::span<const SourceRecipe> DataRecipe::ValidSources() const {
  if (const auto* one = std::get_if<SourceRecipe>(&valid)) return {one, 1};
  if (const auto* list = std::get_if<std::vector<SourceRecipe>>(&valid)) return *list;
  return {};
}

std::vector<KeyedSource> KeyedSources(const DataRecipe& data) {
  std::vector<KeyedSource> all;
  const auto add = [&](std::span<const SourceRecipe> sources, bool is_list,
                       const std::string& key) {
    for (size_t i = 0; i < sources.size(); ++i) {
      all.push_back({&sources[i], key, is_list ? key + "[" + std::to_string(i) + "]" : key});
    }
  };
  add(data.TrainSources(), std::holds_alternative<std::vector<SourceRecipe>>(data.train),
      "data.train");
  add(data.ValidSources(), std::holds_alternative<std::vector<SourceRecipe>>(data.valid),
      "data.valid");
  return all;
}

const std::string* TokenizerOf(const SourceRecipe& source) {
  const bool known =
      source.source == SourceRecipe::Source::kText ||
      (source.source == SourceRecipe::Source::kTokens && source.tokenizer != "bytes");
  return known ? &source.tokenizer : nullptr;
}

const std::string* TokenizerOf(const DataRecipe& data) {
  for (const SourceRecipe& source : data.TrainSources()) {
    if (const std::string* tokenizer = TokenizerOf(source)) return tokenizer;
  }
  return nullptr;
}

Gpt2Config Gpt2Shape(const ModelRecipe& model) {
  const auto get = [](const auto& field, const char* name) {
    if (!field) throw std::invalid_argument(std::string("[Gpt2Shape] model.") + name + " is empty");
    return *field;
  };
  return {.hidden_size = get(model.hidden_size, "hidden_size"),
          .intermediate_size = get(model.intermediate_size, "intermediate_size"),
          .num_hidden_layers = get(model.num_hidden_layers, "num_hidden_layers"),
          .num_attention_heads = get(model.num_attention_heads, "num_attention_heads"),
          .vocab_size = get(model.vocab_size, "vocab_size"),
          .max_position_embeddings = get(model.max_position_embeddings, "max_position_embeddings"),
          .layer_norm_epsilon = get(model.layer_norm_epsilon, "layer_norm_epsilon"),
          .initializer_range = get(model.initializer_range, "initializer_range")};
}

std::vector<ShapeConflict> ShapeConflicts(const Recipe& recipe, const Gpt2Config& shape) {
  std::vector<ShapeConflict> conflicts;
  for (const ShapeMistake& mistake : Validate(shape)) {
    conflicts.push_back(
        {{"model." + mistake.field, "model.hidden_size", "model.preset", "model.init_from"},
         mistake.message});
  }
  const DataRecipe& data = recipe.data;
  if (data.seq_len > shape.max_position_embeddings) {
    conflicts.push_back(
        {{"data.seq_len", "model.max_position_embeddings", "model.preset", "model.init_from"},
         "data.seq_len is " + std::to_string(data.seq_len) +
             ", but model.max_position_embeddings is " +
             std::to_string(shape.max_position_embeddings)});
  }
  bool bytes = false;
  for (const auto& [source, list, key] : KeyedSources(data)) {
    const std::string* tokenizer = TokenizerOf(*source);
    bytes |= tokenizer != nullptr && *tokenizer == "bytes";
    if (source->eot && *source->eot >= shape.vocab_size) {
      conflicts.push_back({{key + ".eot", "model.vocab_size", "model.preset", "model.init_from"},
                           key + ".eot is " + std::to_string(*source->eot) +
                               ", outside the vocabulary of " + std::to_string(shape.vocab_size)});
    }
  }
  if (bytes && shape.vocab_size < 256) {
    conflicts.push_back(
        {{"model.vocab_size", "model.preset", "model.init_from", "data.train", "data.valid"},
         "text in bytes needs a vocabulary of at least 256, got " +
             std::to_string(shape.vocab_size)});
  }
  return conflicts;
}

Gpt2Config Gpt2Shape(const Recipe& recipe, const Gpt2Config& files) {
  std::vector<std::string> mistakes;
  const auto agree = [&](const auto& field, const auto& found, const char* name) {
    if (!field || *field == found) return;
    std::ostringstream message;
    message << "the recipe says " << *field << ", "
            << recipe.model.init_from.value_or("model.init_from") << " says " << found;
    mistakes.push_back(recipe.Mistake(std::string("model.") + name, message.str()));
  };
  const ModelRecipe& model = recipe.model;
  agree(model.hidden_size, files.hidden_size, "hidden_size");
  agree(model.intermediate_size, files.intermediate_size, "intermediate_size");
  agree(model.num_hidden_layers, files.num_hidden_layers, "num_hidden_layers");
  agree(model.num_attention_heads, files.num_attention_heads, "num_attention_heads");
  agree(model.vocab_size, files.vocab_size, "vocab_size");
  agree(model.max_position_embeddings, files.max_position_embeddings, "max_position_embeddings");
  agree(model.layer_norm_epsilon, files.layer_norm_epsilon, "layer_norm_epsilon");
  agree(model.initializer_range, files.initializer_range, "initializer_range");
  for (const ShapeConflict& conflict : ShapeConflicts(recipe, files)) {
    const auto written = std::find_if(conflict.keys.begin(), conflict.keys.end(),
                                      [&](const auto& key) { return recipe.places.count(key); });
    mistakes.push_back(recipe.Mistake(written == conflict.keys.end() ? conflict.keys[0] : *written,
                                      conflict.message));
  }
  std::string text;
  for (const std::string& mistake : mistakes) text += (text.empty() ? "" : "\n") + mistake;
  if (!text.empty()) throw ConfigError(text);
  return files;
}

}  // namespace fsdp
