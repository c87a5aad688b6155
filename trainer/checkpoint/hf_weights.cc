#include "trainer/checkpoint/hf_weights.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "trainer/core/errors.h"
#include "trainer/observe/whole_file.h"

namespace fsdp {
namespace {

constexpr std::string_view kPrefix = "transformer.";

std::string WithoutPrefix(const std::string& name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

nlohmann::json ReadJson(const std::string& path) {
  try {
    return nlohmann::json::parse(ReadWholeFile(path));
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(path + ": " + error.what());
  }
}

// config.json, field by field, with the types it must have: null counts as absent.
class HfConfig {
 public:
  explicit HfConfig(const std::string& path) : path_(path), json_(ReadJson(path)) {
    if (!json_.is_object()) throw CheckpointError(path_ + ": is not a JSON object");
  }

  [[noreturn]] void Refuse(const char* key, const std::string& reason) const {
    throw CheckpointError(path_ + ": " + key + ": " + reason);
  }

  int64_t Integer(const char* key, int64_t otherwise) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number_integer()) Refuse(key, value->dump() + " is not an integer");
    return value->get<int64_t>();
  }
  double Real(const char* key, double otherwise) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) Refuse(key, value->dump() + " is not a number");
    return value->get<double>();
  }
  std::string Text(const char* key, const std::string& otherwise) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) Refuse(key, value->dump() + " is not a string");
    return value->get<std::string>();
  }
  // What is not computed here must have the value that means its absence.
  void WantBoolean(const char* key, bool want) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr || *value == want) return;
    Refuse(key, value->dump() + " is not in this version, only " + (want ? "true" : "false"));
  }

 private:
  const nlohmann::json* Find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }

  std::string path_;
  nlohmann::json json_;
};

// The files of a model, and the one that holds each tensor where there are several.
std::map<std::string, std::string> ReadIndex(const std::string& path) {
  const nlohmann::json index = ReadJson(path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    throw CheckpointError(path + ": has no weight_map");
  }
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      throw CheckpointError(path + ": weight_map names " + file.dump() +
                            ", which is not a file's name");
    }
    file_of[tensor] = name;
  }
  return file_of;
}

}  // namespace

Gpt2Config ReadHfGpt2Config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const HfConfig hf(path);
  if (const std::string type = hf.Text("model_type", "none"); type != "gpt2") {
    hf.Refuse("model_type", type + " is not in this version, only gpt2");
  }
  const std::string activation = hf.Text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    hf.Refuse("activation_function",
              activation + " is not in this version, only gelu_new and gelu_pytorch_tanh");
  }
  hf.WantBoolean("scale_attn_weights", true);
  hf.WantBoolean("scale_attn_by_inverse_layer_idx", false);
  hf.WantBoolean("reorder_and_upcast_attn", false);
  hf.WantBoolean("add_cross_attention", false);
  hf.WantBoolean("tie_word_embeddings", true);

  Gpt2Config config;
  config.hidden_size = hf.Integer("n_embd", 768);
  if (config.hidden_size < 1 || config.hidden_size > kMaxHiddenSize) {
    hf.Refuse("n_embd", std::to_string(config.hidden_size) + " is not from 1 to " +
                            std::to_string(kMaxHiddenSize));
  }
  config.intermediate_size = hf.Integer("n_inner", 4 * config.hidden_size);
  config.num_hidden_layers = hf.Integer("n_layer", 12);
  config.num_attention_heads = hf.Integer("n_head", 12);
  config.vocab_size = hf.Integer("vocab_size", 50257);
  config.max_position_embeddings = hf.Integer("n_positions", 1024);
  config.layer_norm_epsilon = hf.Real("layer_norm_epsilon", 1e-5);
  for (const ShapeMistake& mistake : Validate(config)) {
    throw CheckpointError(path + ": " + mistake.field + ": " + mistake.message);
  }
  return config;
}

HfWeights::HfWeights(const std::string& directory) : directory_(directory) {
  const auto exists = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  const std::string single = directory + "/model.safetensors", index = single + ".index.json";
  const auto add = [this](const SafetensorsReader& file, const std::string& name) {
    if (!tensors_.emplace(WithoutPrefix(name), Tensor{&file, name}).second) {
      throw CheckpointError(file.path() + ": two tensors are called " + WithoutPrefix(name) +
                            ", but for the prefix " + std::string(kPrefix));
    }
  };
  if (exists(single)) {
    files_.push_back(std::make_unique<SafetensorsReader>(single));
    for (const std::string& name : files_[0]->Names()) add(*files_[0], name);
    return;
  }
  if (!exists(index)) {
    throw CheckpointError(directory +
                          ": holds neither model.safetensors nor model.safetensors.index.json");
  }
  std::map<std::string, const SafetensorsReader*> opened;
  for (const auto& [tensor, name] : ReadIndex(index)) {
    const SafetensorsReader*& file = opened[name];
    if (file == nullptr) {
      files_.push_back(std::make_unique<SafetensorsReader>(directory + "/" + name));
      file = files_.back().get();
    }
    file->Info(tensor);  // Throws where the file lacks it.
    add(*file, tensor);
  }
}

void HfWeights::Fill(const std::string& parameter, const Shape& shape, int64_t begin,
                     std::span<float> out) const {
  const auto it = tensors_.find(WithoutPrefix(parameter));
  if (it == tensors_.end()) {
    throw CheckpointError(directory_ + ": has no parameter '" + parameter + "'");
  }
  const auto& [file, name] = it->second;
  const std::vector<int64_t>& dims = file->Info(name).shape;
  bool same = static_cast<int>(dims.size()) == shape.rank();
  for (int i = 0; same && i < shape.rank(); ++i) same = dims[i] == shape[i];
  if (!same) {
    std::string text;
    for (const int64_t dim : dims) text += (text.empty() ? "" : ", ") + std::to_string(dim);
    throw CheckpointError(file->path() + ": parameter '" + parameter + "' has shape [" + text +
                          "], want " + shape.ToString());
  }
  file->ReadFloat(name, begin, out);
}

}  // namespace fsdp
