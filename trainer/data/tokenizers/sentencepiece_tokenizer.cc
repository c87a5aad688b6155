#include "trainer/data/tokenizers/sentencepiece_tokenizer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "src/sentencepiece_processor.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/data/tokenizers/added_tokens.h"
#include "trainer/data/tokenizers/sentencepiece_model.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581.

class SentencePiece : public Tokenizer {
 public:
  SentencePiece(const std::string& path, std::string_view model, const SideFiles& beside)
      : path_(path),
        hash_(beside.Hash(HashBytes(model))),
        settings_(ReadSentencePieceSettings(model)) {
    const auto status = processor_.LoadFromSerializedProto(model);
    if (!status.ok()) {
      throw DataError("tokenizer: " + path +
                      ": neither a tokenizer.json nor a SentencePiece model: " + status.ToString());
    }
    // Encoding needs an unknown token, and a piece of every id.
    bool inner_space = false;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      std::string text;
      if (processor_.IsByte(id)) {
        text = std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
      } else if (processor_.IsUnknown(id)) {
        text = " \xe2\x81\x87 ";  // U+2047, as the library decodes it.
      } else if (!processor_.IsControl(id)) {
        for (size_t i = 0; i < piece.size();) {
          const bool space = std::string_view(piece).substr(i).starts_with(kSpace);
          text += space ? ' ' : piece[i];
          i += space ? kSpace.size() : 1;
        }
        const size_t letter = text.find_first_not_of(' ');
        inner_space |= letter != std::string::npos && text.find(' ', letter) != std::string::npos;
      }
      pieces_.push_back(std::move(text));
    }
    whole_ = inner_space || settings_.treat_whitespace_as_suffix || !settings_.escape_whitespaces ||
             (!settings_.add_dummy_prefix && settings_.remove_extra_whitespaces);
    if (processor_.eos_id() >= 0) eot_ = processor_.eos_id();
    const SideTokens side = ReadSideTokens(path, beside, {});
    for (const SideToken& token : side.tokens) {
      const std::string& text = token.token.content;
      AddedToken added = token.token;
      added.id = IdOfAdded(path, token, IdOf(text), vocab_size());
      if (added.id == vocab_size()) {
        pieces_.push_back(text);
        added_ids_[text] = added.id;
      }
      const bool letters = text.find(' ') != std::string::npos;
      whole_ |= letters || added.lstrip || added.rstrip;
      added_.Add(std::move(added), text);
      finds_added_ = true;
    }
    if (const auto eos = side.named.find("eos_token"); eos != side.named.end()) {
      if (const auto id = IdOf(eos->second)) eot_ = id;
    }
    const auto is = [&](const char* key) {
      const JsonTree* const value = side.config.Find(key);
      return value != nullptr && value->IsBoolean() && value->Boolean();
    };
    if (is("add_bos_token")) {
      const auto bos = side.named.find("bos_token");
      if (bos != side.named.end()) bos_ = IdOf(bos->second);
      if (!bos_ && processor_.bos_id() >= 0) bos_ = processor_.bos_id();
    }
    // LlamaTokenizer adds a space before a text, and none behind an added token.
    const JsonTree* const name = side.config.Find("tokenizer_class");
    const bool once =
        name != nullptr && name->IsText() &&
        name->Text().substr(0, std::string_view("LlamaTokenizer").size()) == "LlamaTokenizer";
    if (finds_added_ && once && !is("legacy") && settings_.add_dummy_prefix) {
      behind_.emplace();
      const auto loaded = behind_->LoadFromSerializedProto(WithoutDummyPrefix(model));
      if (!loaded.ok()) throw DataError("tokenizer: " + path + ": " + loaded.ToString());
    }
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eot() const override { return eot_; }
  uint64_t hash() const override { return hash_; }
  int LeadingSpaces() const override {
    return settings_.add_dummy_prefix || settings_.remove_extra_whitespaces ? 1 : 0;
  }
  std::optional<int32_t> IdOf(std::string_view token) const override {
    if (const auto found = added_ids_.find(token); found != added_ids_.end()) return found->second;
    const int id = processor_.PieceToId(token);  // The unknown one's where there is no such piece.
    if (id < 0 || id >= processor_.GetPieceSize() || processor_.IdToPiece(id) != token) {
      return std::nullopt;
    }
    return id;
  }
  std::string_view Piece(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) {
      throw std::invalid_argument("[Piece] token " + std::to_string(id) + " of " +
                                  std::to_string(vocab_size()));
    }
    return pieces_[static_cast<size_t>(id)];
  }

  bool EncodePart(std::string_view text, size_t end, bool first,
                  std::vector<int32_t>& out) const override {
    if (end < text.size() && (whole_ || !IsBetweenWords(text, end))) return false;
    std::string buffer;
    std::string_view part = WellFormed(text.substr(0, end), buffer);
    // The space before a later part is the one that the library puts before a text.
    if (!first && settings_.add_dummy_prefix && part.starts_with(' ')) part.remove_prefix(1);
    std::vector<int> ids;
    added_.Split(
        part,
        [&](size_t begin, size_t stop) {
          const auto status = At(begin).Encode(part.substr(begin, stop - begin), &ids);
          if (!status.ok()) throw DataError("tokenizer: " + path_ + ": " + status.ToString());
          out.insert(out.end(), ids.begin(), ids.end());
          return true;
        },
        [&](size_t, size_t, int32_t id) {
          out.push_back(id);
          return true;
        });
    return true;
  }

  PlacedIds EncodePlaced(std::string_view text) const override {
    PlacedIds out;
    const auto add = [&](int32_t id, size_t begin) {
      out.ids.push_back(id);
      out.begins.push_back(begin);
      return true;
    };
    added_.Split(
        text,
        [&](size_t begin, size_t stop) {
          const auto encoded = At(begin).EncodeAsImmutableProto(text.substr(begin, stop - begin));
          for (const auto& piece : encoded.pieces()) {
            add(static_cast<int32_t>(piece.id()), begin + piece.begin());
          }
          return true;
        },
        [&](size_t begin, size_t, int32_t id) { return add(id, begin); });
    return out;
  }

  size_t PartEnd(std::string_view text, size_t target) const override {
    if (whole_) return text.size();
    for (size_t i = target; i < text.size(); ++i) {
      if (IsBetweenWords(text, i)) return i;
    }
    return text.size();
  }

 private:
  static bool IsBetweenWords(std::string_view text, size_t at) {
    const auto is_letter = [&](size_t i) { return text[i] >= 'a' && text[i] <= 'z'; };
    return at > 0 && at + 1 < text.size() && text[at] == ' ' && is_letter(at - 1) &&
           is_letter(at + 1);
  }

  // For a stretch that begins there: behind an added token, or at the start.
  const sentencepiece::SentencePieceProcessor& At(size_t begin) const {
    return begin > 0 && behind_ ? *behind_ : processor_;
  }

  std::string path_;
  uint64_t hash_;
  SentencePieceSettings settings_;
  sentencepiece::SentencePieceProcessor processor_;
  std::optional<sentencepiece::SentencePieceProcessor> behind_;
  AddedTokens added_;
  bool finds_added_ = false;
  std::map<std::string, int32_t, std::less<>> added_ids_;  // Those without a piece of the model.
  std::vector<std::string> pieces_;
  std::optional<int32_t> bos_, eot_;
  bool whole_ = false;
};

}  // namespace

std::shared_ptr<const Tokenizer> ParseSentencePiece(const std::string& path, std::string_view model,
                                                    const SideFiles& beside) {
  return std::make_shared<const SentencePiece>(path, model, beside);
}

}  // namespace fsdp
