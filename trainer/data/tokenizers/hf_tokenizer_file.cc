#include "trainer/data/tokenizers/hf_tokenizer_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/data/tokenizers/hf_tokenizer_json.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

// By the character of ByteLevel's alphabet.
const std::map<uint32_t, char>& BytesOfAlphabet() {
  static const std::map<uint32_t, char> bytes = [] {
    std::map<uint32_t, char> of;
    for (uint32_t b = 0; b < 256; ++b) {
      of[CharacterOfByte(static_cast<unsigned char>(b))] = static_cast<char>(b);
    }
    return of;
  }();
  return bytes;
}

// Empty where a character is none of the alphabet's.
std::optional<std::string> BytesOf(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const CodePoint c = FirstCodePoint(token);
    const auto found = BytesOfAlphabet().find(c.value);
    if (found == BytesOfAlphabet().end()) return std::nullopt;
    bytes += found->second;
    token.remove_prefix(c.bytes);
  }
  return bytes;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}
  HfTokenizerFile Read(const JsonValue& json, const SideFiles& beside);

 private:
  void ReadModel(const JsonValue& json);
  void ReadBpe(const JsonValue& model);
  void ReadUnigram(const JsonValue& model);
  void AddPiece(const std::string& text, int32_t id);
  // Those of the file, then those of the files beside it. A later mention of a token changes its
  // flags.
  void ReadAddedTokens(const JsonValue& json, const SideFiles& beside);
  void Add(const std::vector<SideToken>& tokens);
  void ReadDecoder(const JsonValue& json);
  void AddDecoder(const JsonValue& part);
  void ReadEnds(const JsonValue& json);
  void ReadTemplate(const JsonValue& part);
  std::optional<int32_t> IdOf(std::string_view token) const {
    const auto found = file_.ids.find(std::string(token));
    if (found == file_.ids.end()) return std::nullopt;
    return found->second;
  }

  const std::string path_;
  HfTokenizerFile file_;
  int32_t vocab_size_ = 0;                                         // The model's number of pieces.
  std::map<int32_t, HfTokenizerFile::Added> added_;                // They stand for their own text.
  std::optional<std::string> eos_;                                 // That of the files beside it.
  std::vector<std::pair<std::string, std::string>> replacements_;  // The decoder's.
  bool decodes_bytes_ = false;
};

void Reader::AddPiece(const std::string& text, int32_t id) {
  if (static_cast<size_t>(id) >= file_.pieces.size()) {
    file_.pieces.resize(static_cast<size_t>(id) + 1);
  }
  file_.pieces[static_cast<size_t>(id)] = text;  // As written: ReadDecoder turns it into bytes.
  file_.ids[text] = id;
}

void Reader::ReadUnigram(const JsonValue& model) {
  UnigramOptions options;
  options.byte_fallback = HfFlag(model, "byte_fallback");
  const JsonValue vocab = model.At("vocab");
  for (const JsonValue& entry : HfParts(vocab, vocab.place())) {
    const std::string place = "model.vocab[" + std::to_string(options.vocab.size()) + "]";
    const auto pair = entry.IsList() ? entry.Elements() : std::vector<JsonValue>();
    if (pair.size() != 2 || !pair[0].IsText() || !pair[1].IsNumber()) {
      throw HfRefused{place + " is no piece with a score"};
    }
    AddPiece(pair[0].Text(), static_cast<int32_t>(options.vocab.size()));
    options.vocab.emplace_back(pair[0].Text(), pair[1].Number());
    if (options.vocab.size() > static_cast<size_t>(kMostIds)) vocab.Refuse("has too many pieces");
  }
  if (options.vocab.empty()) vocab.Refuse("is empty");
  vocab_size_ = static_cast<int32_t>(options.vocab.size());
  if (!model.Find("unk_id")) model.Refuse("unk_id", "is not given, and that is not supported");
  options.unk = static_cast<int32_t>(model.At("unk_id").Integer(0, vocab_size_ - 1));
  if (file_.steps.byte_level) HfUnsupported(model, "`Unigram` behind `ByteLevel`");
  file_.unigram.emplace(options);
}

void Reader::ReadModel(const JsonValue& json) {
  const JsonValue model = json.At("model");
  // Old files leave the type out.
  const auto type = model.Find("type");
  const bool pairs = model.Has("vocab") && model.At("vocab").IsList();
  if (type ? type->IsText("Unigram") : pairs) {
    ReadUnigram(model);
  } else if (!type || type->Text() == "BPE") {
    ReadBpe(model);
  } else {
    HfUnsupported(model, "`" + type->Text() + "`");
  }
}

void Reader::ReadBpe(const JsonValue& model) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model.Find(key);
    if (affix && !affix->Text().empty()) affix->Refuse("is not supported");
  }
  const auto dropout = model.Find("dropout");
  if (dropout && !dropout->Is("0")) dropout->Refuse("is not supported");
  BpeOptions options;
  options.byte_level = file_.steps.byte_level;
  options.ignore_merges = HfFlag(model, "ignore_merges");
  options.byte_fallback = HfFlag(model, "byte_fallback");
  options.fuse_unk = HfFlag(model, "fuse_unk");
  const auto unk = model.Find("unk_token");
  if (unk) options.unk = unk->Text();
  const JsonValue vocab = model.At("vocab");
  const auto tokens = vocab.IsObject() ? vocab.Members() : decltype(vocab.Members())();
  if (tokens.empty()) vocab.Refuse("is no map, or empty");
  const auto as_units = [&](const std::string& token) {
    return file_.steps.byte_level ? BytesOf(token) : std::optional(token);
  };
  for (const auto& [token, value] : tokens) {
    const int32_t id = HfId(value.Named("model.vocab[`" + token + "`]"));
    AddPiece(token, id);
    // One that is not of the alphabet can be no word's.
    if (std::optional<std::string> units = as_units(token)) {
      options.vocab.emplace_back(std::move(*units), id);
    }
  }
  vocab_size_ = static_cast<int32_t>(tokens.size());
  const std::vector<JsonValue> merges = model.At("merges").Elements();
  options.merges.reserve(merges.size());
  for (const JsonValue& merge : merges) {
    std::string left, right;
    if (merge.IsText()) {
      const std::string& both = merge.Text();
      const size_t space = both.find(' ');
      if (space == std::string::npos) throw HfRefused{"model.merges: `" + both + "` is no pair"};
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      const auto pair = merge.IsList() ? merge.Elements() : std::vector<JsonValue>();
      if (pair.size() != 2 || !pair[0].IsText() || !pair[1].IsText()) {
        throw HfRefused{"model.merges: " + merge.Dump().substr(0, 40) + " is no pair"};
      }
      left = pair[0].Text();
      right = pair[1].Text();
    }
    std::optional<std::string> a = as_units(left), b = as_units(right);
    if (!a || !b) throw HfRefused{"model.merges: `" + left + " " + right + "` is not of bytes"};
    options.merges.emplace_back(std::move(*a), std::move(*b));
  }
  if (options.unk) {
    // By its own name, which need not be of the alphabet.
    if (file_.ids.count(*options.unk) == 0) unk->Refuse("`" + *options.unk + "` is no token");
    if (file_.steps.byte_level) {
      const std::optional<std::string> units = as_units(*options.unk);
      if (!units) HfUnsupported(*unk, "`" + *options.unk + "` under ByteLevel");
      options.unk = units;
    }
  }
  try {
    file_.bpe.emplace(options);
  } catch (const std::invalid_argument& error) {
    throw HfRefused{std::string("model: ") + error.what()};
  }
}

void Reader::Add(const std::vector<SideToken>& tokens) {
  const int32_t last = added_.empty() ? -1 : added_.rbegin()->first;
  int32_t next = std::max(vocab_size_, last + 1);
  for (const SideToken& token : tokens) {
    const std::string& text = token.token.content;
    const std::optional<int32_t> known = IdOf(text);
    const int32_t id = IdOfAdded(path_, token, known, next);
    if (!known) {
      ++next;
      // Where the model's ids have gaps.
      if (static_cast<size_t>(id) < file_.pieces.size() &&
          !file_.pieces[static_cast<size_t>(id)].empty()) {
        throw HfRefused{token.place + " would get id " + std::to_string(id) + ", which `" +
                        file_.pieces[static_cast<size_t>(id)] + "` has"};
      }
      AddPiece(text, id);
    }
    AddedToken added = token.token;
    added.id = id;
    added_[id] = {std::move(added), token.normalized};
  }
  if (next > kMostIds) throw HfRefused{"added tokens: too many"};
}

void Reader::ReadAddedTokens(const JsonValue& json, const SideFiles& beside) {
  std::vector<SideToken> own;
  std::set<std::string> texts;
  if (const auto tokens = json.Find("added_tokens")) {
    for (const JsonValue& entry : HfParts(*tokens, tokens->place())) {
      SideToken token;
      token.token.content = entry.At("content").Text();
      token.place = "added_tokens: `" + token.token.content.substr(0, 100) + "`";
      token.token.id = HfId(entry.At("id").Named("added_tokens[`" + token.token.content + "`].id"));
      token.token.single_word = HfFlag(entry, "single_word");
      token.token.lstrip = HfFlag(entry, "lstrip");
      token.token.rstrip = HfFlag(entry, "rstrip");
      token.normalized = HfFlag(entry, "normalized", !HfFlag(entry, "special"));
      if (token.token.content.empty()) throw HfRefused{"added_tokens: one is empty"};
      texts.insert(token.token.content);
      own.push_back(std::move(token));
    }
  }
  Add(own);
  const SideTokens side = ReadSideTokens(path_, beside, texts);
  Add(side.tokens);
  if (const auto eos = side.named.find("eos_token"); eos != side.named.end()) eos_ = eos->second;
  for (const auto& [id, added] : added_) file_.added.push_back(added);
}

void Reader::AddDecoder(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  if (type == "ByteLevel") {
    decodes_bytes_ = true;
  } else if (type == "Sequence") {
    for (const JsonValue& inner : HfParts(part.At("decoders"), part.place())) AddDecoder(inner);
  } else if (type == "Metaspace") {
    replacements_.emplace_back(part.At("replacement").Text(), " ");
    const auto scheme = part.Find("prepend_scheme");
    const bool prefix = scheme ? scheme->Text() != "never" : HfFlag(part, "add_prefix_space", true);
    if (prefix) file_.strip = 1;
  } else if (type == "Replace") {
    if (!part.At("pattern").Has("String")) HfUnsupported(part, "`Replace` of a pattern");
    replacements_.emplace_back(HfPatternOf(part).text, part.At("content").Text());
  } else if (type == "Strip") {
    if (part.At("content").Text() != " " || !part.At("stop").Is("0")) {
      HfUnsupported(part, "`Strip` of anything but spaces at the start");
    }
    file_.strip += HfId(part.At("start"));
  } else if (type != "ByteFallback" && type != "Fuse") {  // Pieces are bytes and one text anyway.
    HfUnsupported(part, "`" + type + "`");
  }
}

void Reader::ReadDecoder(const JsonValue& json) {
  if (const auto part = json.Find("decoder")) AddDecoder(*part);
  for (std::string& piece : file_.pieces) {
    if (decodes_bytes_) {
      if (std::optional<std::string> bytes = BytesOf(piece)) piece = std::move(*bytes);
      continue;
    }
    for (const auto& [from, to] : replacements_) {
      for (size_t at = 0; (at = piece.find(from, at)) != std::string::npos; at += to.size()) {
        piece.replace(at, from.size(), to);
      }
    }
    if (piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>') {
      const std::string_view digits = "0123456789ABCDEF";
      const size_t high = digits.find(piece[3]), low = digits.find(piece[4]);
      if (high != std::string_view::npos && low != std::string_view::npos) {
        piece = std::string(1, static_cast<char>(high << 4 | low));
      }
    }
  }
  for (const auto& [id, added] : added_) {
    file_.pieces[static_cast<size_t>(id)] = added.token.content;
  }
}

void Reader::ReadTemplate(const JsonValue& part) {
  const std::string& type = part.At("type").Text();
  if (type == "Sequence") {
    for (const JsonValue& inner : HfParts(part.At("processors"), part.place())) ReadTemplate(inner);
  } else if (type == "TemplateProcessing") {
    bool behind = false;
    for (const JsonValue& item : HfParts(part.At("single"), part.place())) {
      if (item.Has("Sequence")) {
        behind = true;
        continue;
      }
      const JsonValue token = item.At("SpecialToken").Named(part.place());
      (behind ? file_.eot : file_.bos) = IdOf(token.At("id").Text());
    }
  } else if (type != "ByteLevel") {
    HfUnsupported(part, "`" + type + "`");
  }
}

void Reader::ReadEnds(const JsonValue& json) {
  if (const auto part = json.Find("post_processor")) ReadTemplate(*part);
  if (eos_) file_.eot = IdOf(*eos_);
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (!file_.eot) file_.eot = IdOf(name);
  }
}

HfTokenizerFile Reader::Read(const JsonValue& json, const SideFiles& beside) {
  file_.steps = ReadHfSteps(json);
  ReadModel(json);
  ReadAddedTokens(json, beside);
  ReadDecoder(json);
  ReadEnds(json);
  return std::move(file_);
}

}  // namespace

HfTokenizerFile ReadHfTokenizerFile(const std::string& path, std::string_view json,
                                    const SideFiles& beside) {
  try {
    const JsonValue file = ParseJson(json, "", kHfErrors, "the file");
    if (!file.IsObject()) file.Refuse("is no JSON object");
    return Reader(path).Read(file, beside);
  } catch (const HfRefused& refused) {
    constexpr std::string_view kFile = "the file:";  // A fault has its line behind the path.
    const bool placed = refused.what.starts_with(kFile);
    throw DataError("tokenizer: " + path + ":" +
                    (placed ? refused.what.substr(kFile.size()) : " " + refused.what));
  }
}

}  // namespace fsdp
