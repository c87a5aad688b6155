#include "trainer/weights/run_tokenizer.h"

#include <filesystem>
#include <memory>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/read_file.h"
#include "trainer/data/data_files.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/recipe/data_source.h"

namespace fsdp {

std::optional<TokenManifest> ManifestOf(const SourceRecipe& source) {
  namespace fs = std::filesystem;
  try {
    for (const std::string& path : ExpandPaths(source.paths)) {
      std::error_code error;
      const fs::path parent = fs::path(path).parent_path();
      const std::string folder = fs::is_directory(path, error) ? path
                                 : parent.empty()              ? "."
                                                               : parent.string();
      if (auto manifest = ReadTokenManifest(folder)) return manifest;
    }
  } catch (const DataError&) {  // Nothing that would say it.
  }
  return std::nullopt;
}

RunTokenizer TokenizerOfRun(const Recipe& recipe) {
  RunTokenizer run;
  if (const std::string* name = TokenizerOf(recipe.data)) run.name = *name;
  for (const SourceRecipe& source : recipe.data.TrainSources()) {
    std::optional<TokenManifest> manifest;
    const DataSource& row = RowOf(source);
    if (row.tokenizer == DataSource::Tokenizer::kMadeBy) manifest = ManifestOf(source);
    if (run.name.empty() && manifest) {
      run.name = manifest->tokenizer;
      run.hash = manifest->tokenizer_hash;
    }
    run.chats |= row.chat_template != nullptr;
    if (run.chat_template.empty() && row.chat_template) {
      run.chat_template = row.chat_template(source);
    }
    if (!run.eot && source.eot) run.eot = static_cast<int32_t>(*source.eot);
    if (!run.eot && manifest) run.eot = manifest->eot;
  }
  return run;
}

std::shared_ptr<const Tokenizer> OpenRunTokenizer(const RunTokenizer& run) {
  std::shared_ptr<const Tokenizer> tokenizer = OpenTokenizer(run.name);
  if (run.hash && tokenizer->hash() != *run.hash) {
    throw DataError("tokenizer: " + run.name + ": is not the one that made the run's tokens");
  }
  return tokenizer;
}

namespace {

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kEndOfText = "<|endoftext|>";
// Loads a tokenizer.json as it is, whatever the model; every other class has its own way to split.
constexpr const char* kFastClass = "PreTrainedTokenizerFast";
// The library's own ids from a .model (transformers 5).
constexpr const char* kSentencePieceClass = "SentencePieceBackend";
constexpr const char* kT5Class = "T5Tokenizer";

std::string Utf8(uint32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

// Token = byte. ByteLevel writes a byte as a character: printable ones as themselves, the others
// from U+0100 on (openai/gpt-2, src/encoder.py). `eot` is a token of its own where it is no byte.
std::string BytesJson(std::optional<int32_t> eot) {
  JsonTree vocab = JsonTree::Object();
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    vocab[Utf8(printable ? b : next++)] = b;
  }
  JsonTree added = JsonTree::List();
  if (eot && *eot >= kByteVocabSize) {
    added.Append(JsonTree::Object({{"id", *eot},
                                   {"content", kEndOfText},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", false},
                                   {"special", true}}));
  }
  const JsonTree level = JsonTree::Object({{"type", "ByteLevel"},
                                           {"add_prefix_space", false},
                                           {"trim_offsets", false},
                                           {"use_regex", false}});
  const JsonTree model = JsonTree::Object({{"type", "BPE"},
                                           {"dropout", nullptr},
                                           {"unk_token", nullptr},
                                           {"continuing_subword_prefix", nullptr},
                                           {"end_of_word_suffix", nullptr},
                                           {"fuse_unk", false},
                                           {"byte_fallback", false},
                                           {"ignore_merges", false},
                                           {"vocab", vocab},
                                           {"merges", JsonTree::List()}});
  return JsonTree::Object({{"version", "1.0"},
                           {"truncation", nullptr},
                           {"padding", nullptr},
                           {"added_tokens", added},
                           {"normalizer", nullptr},
                           {"pre_tokenizer", level},
                           {"post_processor", nullptr},
                           {"decoder", level},
                           {"model", model}})
             .Dump(1) +
         "\n";
}

// The text is JSON already: who opened the tokenizer has read it.
JsonTree Parsed(const std::map<std::string, std::string>& contents, const std::string& name) {
  const auto found = contents.find(name);
  if (found == contents.end()) return JsonTree::Object();
  const std::optional<JsonTree> json = JsonTree::Parse(found->second);
  return json && json->IsObject() ? *json : JsonTree::Object();
}

// As the tokenizer's file has it; empty where that cannot be told.
std::string SpellingOf(const Tokenizer& tokenizer, int32_t id) {
  if (id < 0 || id >= tokenizer.vocab_size()) return "";  // The vocabulary was padded.
  const std::string piece(tokenizer.Piece(id));
  for (const std::string& text : {piece, std::string("</s>"), std::string("<s>"),
                                  std::string("<eos>"), std::string("<bos>")}) {
    if (tokenizer.IdOf(text) == id) return text;
  }
  return "";
}

// A token by its text, or as an object that has it.
std::optional<int32_t> TokenOf(const JsonTree& config, const char* key,
                               const Tokenizer& tokenizer) {
  const JsonTree* text = config.Find(key);
  if (text != nullptr && text->IsObject()) text = text->Find("content");
  if (text == nullptr || !text->IsText()) return std::nullopt;
  return tokenizer.IdOf(text->Text());
}

}  // namespace

HfTokenizerFiles ReadHfTokenizerFiles(const std::string& name, std::optional<int32_t> eot,
                                      int64_t positions, const std::string& chat_template) {
  namespace fs = std::filesystem;
  HfTokenizerFiles out;
  const std::shared_ptr<const Tokenizer> tokenizer = OpenTokenizer(name);
  out.ids.eos = eot ? eot : tokenizer->eot();
  out.ids.bos = tokenizer->bos();
  bool json = true, sentinels = false;
  if (name == "bytes") {
    out.contents["tokenizer.json"] = BytesJson(eot);
  } else {
    const std::string file = TokenizerFileIn(name).value_or(name);
    const fs::path folder = fs::path(file).parent_path();
    const std::string bytes(FileContents(file).bytes());
    const size_t start = bytes.find_first_not_of(" \t\r\n");
    json = start != std::string::npos && bytes[start] == '{';
    // T5Tokenizer looks for spiece.model, others for tokenizer.model.
    sentinels = !json && tokenizer->IdOf("<extra_id_0>");
    out.contents[json ? "tokenizer.json" : sentinels ? "spiece.model" : "tokenizer.model"] = bytes;
    std::vector<std::string> files = MoreHfTemplatesIn(folder.string());
    files.insert(files.end(), {kConfig, "special_tokens_map.json", "added_tokens.json",
                               "chat_template.jinja", "chat_template.json"});
    for (const std::string& beside : files) {
      const std::string path = (folder / beside).string();
      if (!PathExists(path)) continue;
      FileText read = ReadFileText(path, kMostTextBytes);
      if (!read.why.empty()) throw DataError("data: " + path + ": " + read.why);
      if (!read.text.empty()) out.contents[beside] = std::move(read.text);
    }
  }
  if (!chat_template.empty()) {  // Before any other, to transformers.
    FileText read = ReadFileText(chat_template, kMostTextBytes);
    if (!read.why.empty()) throw DataError("data: " + chat_template + ": " + read.why);
    out.contents["chat_template.jinja"] = std::move(read.text);
  }
  JsonTree config = Parsed(out.contents, kConfig);
  // As the tokenizer's reader (side_files.h).
  const JsonTree map = config.Contains("added_tokens_decoder")
                           ? JsonTree::Object()
                           : Parsed(out.contents, "special_tokens_map.json");
  for (const JsonTree& from : {map, config}) {
    if (!out.ids.bos) out.ids.bos = TokenOf(from, "bos_token", *tokenizer);
    if (!out.ids.pad) out.ids.pad = TokenOf(from, "pad_token", *tokenizer);
  }
  if (!config.Contains("tokenizer_class")) {
    const bool ours = config.empty();
    config["tokenizer_class"] = json ? kFastClass : sentinels ? kT5Class : kSentencePieceClass;
    if (ours) {
      config["clean_up_tokenization_spaces"] = false;
      config["model_max_length"] = positions;
      const auto name_token = [&](const char* key, std::optional<int32_t> id) {
        if (!id) return;
        if (name == "bytes") {
          if (*id >= kByteVocabSize) config[key] = kEndOfText;
        } else if (const std::string text = SpellingOf(*tokenizer, *id); !text.empty()) {
          config[key] = text;
        }
      };
      name_token("eos_token", out.ids.eos);
      name_token("bos_token", out.ids.bos);
    }
    out.contents[kConfig] = config.Dump(2) + "\n";
  }
  const JsonTree& named = config["tokenizer_class"];
  if (named.IsText()) out.tokenizer_class = named.Text();
  return out;
}

}  // namespace fsdp
