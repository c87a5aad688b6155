#include "trainer/weights/hf_config.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "models/family.h"
#include "models/hf_object.h"
#include "models/shape.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/json_text.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/read_file.h"
#include "trainer/weights/hf_weights.h"

namespace fsdp {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

constexpr JsonErrors kErrors{
    .raise = [](const std::string& message) { throw CheckpointError(message); },
    .shows_value = true,
    .integer = "is not an integer",
    .boolean = "is not true or false"};

// Facts about the files and about how the model is used; no part of what it computes.
constexpr const char* kBookkeeping[] = {
    "_name_or_path", "architectures", "bos_token_id", "dtype",     "eos_token_id",
    "model_type",    "pad_token_id",  "torch_dtype",  "use_cache", "transformers_version"};

// Features that any config.json may ask for.
const std::vector<HfFeature>& CommonFeatures() {
  static const std::vector<HfFeature> features = {
      {"pruned_heads", {"{}"}},
      {"is_encoder_decoder", {"false"}},
      {"is_decoder", {"false", "true"}},
      {"add_cross_attention", {"false"}},
      {"num_experts", {"0", "1"}},
      {"num_local_experts", {"0", "1"}},
      {"n_routed_experts", {"0"}},
      {"final_logit_softcapping", {}},
      {"attn_logit_softcapping", {}},
      {"logit_scale", {"1", "1.0"}},
      {"embedding_multiplier", {"1", "1.0"}},
      {"residual_multiplier", {"1", "1.0"}},
      {"logits_scaling", {"1", "1.0"}},
  };
  return features;
}

// Refuses any form of weights but bitsandbytes' nf4 (transformers' BitsAndBytesConfig). The tensors
// say which weights have it (bnb_tensor.h). Others are whole, but a wrong choice: ConfigError.
void ReadQuantisation(HfObject& hf) {
  const auto config = hf.Find("quantization_config");
  if (!config) return;
  const auto refuse = [&](const std::string& key, const std::string& words) {
    try {
      config->Refuse(key, words +
                              " is not in this version, only \"bitsandbytes\" with nf4 in uint8: "
                              "begin from the weights before they were quantised");
    } catch (const CheckpointError& error) {
      throw ConfigError(error.what());
    }
  };
  const auto is_on = [&](const std::string& key) {
    const auto value = config->Find(key);
    return value && value->Is("true");
  };
  const auto method = config->Find("quant_method");
  const bool eight = is_on("load_in_8bit") || is_on("_load_in_8bit"),
             four = is_on("load_in_4bit") || is_on("_load_in_4bit");
  if (!method && !four && !eight) hf.Refuse("quantization_config", "names no quant_method");
  if (method && !method->IsText("bitsandbytes")) refuse("quant_method", method->Show());
  if (eight) refuse("load_in_8bit", "true");
  for (const auto& [key, want] :
       {std::pair("bnb_4bit_quant_type", "nf4"), std::pair("bnb_4bit_quant_storage", "uint8")}) {
    const auto value = config->Find(key);
    if (value && !value->IsText(want)) refuse(key, value->Show());
  }
  hf.Note("weights of linear layers come in bitsandbytes' four bits, and are what these decode to");
}

// Dropout in places where we have none: refused, whatever the key is called. Heads of other tasks
// are not built.
void RefuseOtherDropouts(const std::vector<std::pair<std::string, JsonValue>>& unasked,
                         const HfObject& hf) {
  for (const auto& [key, value] : unasked) {
    if (key == "summary_first_dropout" || key == "classifier_dropout") continue;
    const bool drops = key.find("drop") != std::string::npos;
    if (drops && value.IsNumber() && !value.Is("0")) {
      hf.Refuse(key, value.Show() + " is not in this version, only 0");
    }
  }
}

// One id or a list of them; what is none is nobody's.
std::vector<int32_t> Ids(const std::optional<JsonValue>& value) {
  std::vector<int32_t> ids;
  const auto add = [&](const JsonValue& id) {
    if (id.IsInteger(0, kMaxVocabSize)) ids.push_back(static_cast<int32_t>(id.Integer()));
  };
  if (!value) return ids;
  if (!value->IsList()) {
    add(*value);
  } else {
    for (const JsonValue& id : value->Elements()) add(id);
  }
  return ids;
}

const ModelFamily* FamilyOfType(std::string_view model_type) {
  for (const ModelFamily* family : Families()) {
    const auto types = family->hf_types();
    if (std::find(types.begin(), types.end(), model_type) != types.end()) return family;
  }
  return nullptr;
}

std::string KnownTypes() {
  std::string all;
  for (const ModelFamily* family : Families()) {
    for (const std::string_view type : family->hf_types()) {
      all += (all.empty() ? "" : ", ") + std::string(type);
    }
  }
  return all;
}

// The files of a directory, opened when they are asked for.
class OpenedLater : public HfFiles {
 public:
  explicit OpenedLater(std::string directory) : directory_(std::move(directory)) {}
  bool Holds(const std::string& tensor) const override { return files().Holds(tensor); }
  bool AreEqual(const std::string& a, const std::string& b) const override {
    return files().AreEqual(a, b);
  }

 private:
  const HfWeights& files() const {
    if (!files_) files_.emplace(directory_);
    return *files_;
  }

  const std::string directory_;
  mutable std::optional<HfWeights> files_;
};

JsonValue Parse(std::string_view text, const std::string& path) {
  if (text.size() > kMaxBytes) {
    throw CheckpointError(path + ": has " + std::to_string(text.size()) + " bytes, the most is " +
                          std::to_string(kMaxBytes));
  }
  JsonValue json = ParseJson(JsonOfPython(std::string(text)), path, kErrors);
  if (!json.IsObject()) json.Refuse("is not a JSON object");
  return json;
}

}  // namespace

HfConfig ParseHfConfig(std::string_view text, const std::string& path, const HfFiles* files) {
  HfObject hf(Parse(text, path), files);
  HfConfig config;
  const std::string type = hf.Text("model_type").value_or("none");
  const ModelFamily* const family = FamilyOfType(type);
  if (family == nullptr) {
    const auto given = hf.Find("model_type");
    hf.Refuse("model_type", (given ? given->Show() : "\"none\"") +
                                " is not in this version, only " + KnownTypes());
  }
  config.shape = family->ReadHf(type, hf);
  ReadQuantisation(hf);
  for (const HfFeature& f : CommonFeatures()) {
    if (!hf.WasAsked(f.key)) hf.WantOneOf(f.key, f.harmless);
  }
  for (const ShapeMistake& mistake : Validate(config.shape)) {
    hf.Refuse(mistake.field, mistake.message);
  }
  for (const char* key : kBookkeeping) hf.Find(key);
  config.eos = Ids(hf.Find("eos_token_id"));
  const auto unasked = hf.Unasked();
  for (const auto& [key, value] : unasked) config.ignored.push_back(key);
  RefuseOtherDropouts(unasked, hf);
  config.notes = hf.notes();
  return config;
}

HfConfig ReadHfConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const OpenedLater files(directory);
  return ParseHfConfig(ReadWholeFile(path), path, HoldsHfWeights(directory) ? &files : nullptr);
}

std::vector<std::string> MoreHfTemplatesIn(const std::string& directory) {
  const std::string folder = "additional_chat_templates";
  std::vector<std::string> names;
  std::error_code none;
  for (std::filesystem::directory_iterator at(directory + "/" + folder, none), end;
       !none && at != end; at.increment(none)) {
    if (at->path().extension() == ".jinja")
      names.push_back(folder + "/" + at->path().filename().string());
  }
  return names;
}

std::vector<std::string> HfTextFilesIn(const std::string& directory) {
  std::vector<std::string> names = MoreHfTemplatesIn(directory);
  for (const char* name :
       {"config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json",
        "tokenizer.model", "spiece.model", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "chat_template.jinja", "chat_template.json"}) {
    if (PathExists(directory + "/" + name)) names.emplace_back(name);
  }
  return names;
}

std::optional<DType> ReadHfDType(const std::string& directory) {
  const std::string path = directory + "/config.json";
  if (!PathExists(path)) return std::nullopt;
  const JsonValue json = Parse(ReadWholeFile(path), path);
  for (const char* key : {"dtype", "torch_dtype"}) {  // Newer files have the first.
    const auto value = json.Find(key);
    if (!value || !value->IsText()) continue;
    const std::string name = value->Text();
    if (name == "float32") return DType::kFloat32;
    if (name == "bfloat16") return DType::kBFloat16;
    if (name == "float16") return DType::kFloat16;
  }
  return std::nullopt;
}

std::string ReadHfGenerationConfig(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  if (!PathExists(path)) return "";
  const std::string text = ReadWholeFile(path);
  Parse(text, path);
  return ReadPythonJson(text).value_or(PythonJson{text, {}}).text;
}

std::vector<std::string> ReadHfClasses(const std::string& directory) {
  const std::string path = directory + "/config.json";
  std::vector<std::string> classes;
  const auto names = Parse(ReadWholeFile(path), path).Find("id2label");
  for (size_t i = 0; names && i < names->Members().size(); ++i) {
    const auto name = names->Find(std::to_string(i));
    if (!name || !name->IsText()) return {};
    classes.push_back(name->Text());
  }
  return classes;
}

std::vector<int32_t> ReadHfEos(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  if (const std::string text = ReadHfGenerationConfig(directory); !text.empty()) {
    std::vector<int32_t> ids = Ids(Parse(text, path).Find("eos_token_id"));
    if (!ids.empty()) return ids;
  }
  return ReadHfConfig(directory).eos;
}

std::string HfModelType(const ModelShape& shape) {
  return std::string(shape.family().HfType(shape));
}

namespace {

// One id, or a list where there are several.
JsonTree EndsOf(const HfTokenIds& ids) {
  std::vector<int32_t> ends;
  if (ids.eos) ends.push_back(*ids.eos);
  for (const int32_t id : ids.other_ends) {
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  return ends.empty() ? JsonTree() : ends.size() == 1 ? JsonTree(ends[0]) : JsonTree(ends);
}

}  // namespace

std::string HfGenerationConfigToJson(const HfTokenIds& ids, const std::string& base) {
  JsonTree json = JsonTree::Parse(base).value_or(JsonTree::Object());
  json.Erase("_from_model_config");  // transformers would make it anew of config.json.
  JsonTree ends = EndsOf(ids);
  const JsonTree first = ends.IsList() ? ends.Elements()[0] : ends;
  for (const auto& [key, id] : {std::pair("bos_token_id", JsonTree(ids.bos)),
                                std::pair("pad_token_id", ids.pad ? JsonTree(ids.pad) : first)}) {
    if (!json.Contains(key)) json[key] = id;
  }
  json["eos_token_id"] = std::move(ends);
  return json.Dump(2) + "\n";
}

std::string HfConfigToJson(const ModelShape& shape, std::string_view dtype, const HfTokenIds& ids,
                           const std::vector<std::string>& classes) {
  JsonTree json = shape.family().WriteHf(shape);
  if (json.Contains("id2label") && json["id2label"].size() == classes.size()) {
    JsonTree names = JsonTree::Object(), labels = names;
    for (size_t i = 0; i < classes.size(); ++i) {
      names[std::to_string(i)] = classes[i];
      labels[classes[i]] = i;
    }
    json["id2label"] = std::move(names);
    json["label2id"] = std::move(labels);
  }
  const bool has_tokens = shape.Find("vocab_size").has_value();
  if (has_tokens) {  // Null where there is none: absent, some families' defaults would be.
    for (const auto& [key, id] :
         {std::pair("bos_token_id", JsonTree(ids.bos)), std::pair("eos_token_id", EndsOf(ids)),
          std::pair("pad_token_id", JsonTree(ids.pad))}) {
      if (!json.Contains(key)) json[key] = id;  // A family may have its own.
    }
  }
  json["torch_dtype"] = dtype;
  if (has_tokens) json["use_cache"] = true;
  return json.Dump(2, JsonTree::IllFormed::kReplaced) + "\n";  // A class may be no UTF-8.
}

}  // namespace fsdp
