#include "trainer/data/tokenizers/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/philox.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581.

// The settings of sentencepiece_model.proto that its C++ interface does not show.
struct Settings {
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool treat_whitespace_as_suffix = false;
};

// Walks through a message of Protocol Buffers. visit(field, varint, bytes); false where the bytes
// are no message.
template <typename Visit>
bool ForEachField(std::string_view message, const Visit& visit) {
  const auto varint = [&](uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !message.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[0]);
      message.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  while (!message.empty()) {
    uint64_t tag = 0, value = 0;
    if (!varint(tag)) return false;
    std::string_view bytes;
    switch (tag & 7) {
      case 0:
        if (!varint(value)) return false;
        break;
      case 1:
      case 5:
        value = (tag & 7) == 1 ? 8 : 4;
        [[fallthrough]];
      case 2:
        if ((tag & 7) == 2 && !varint(value)) return false;
        if (value > message.size()) return false;
        bytes = message.substr(0, value);
        message.remove_prefix(value);
        break;
      default:
        return false;
    }
    visit(tag >> 3, value, bytes);
  }
  return true;
}

Settings ReadSettings(std::string_view model) {
  Settings s;
  ForEachField(model, [&](uint64_t part, uint64_t, std::string_view bytes) {
    if (part == 2) {  // TrainerSpec.
      ForEachField(bytes, [&](uint64_t field, uint64_t value, std::string_view) {
        if (field == 24) s.treat_whitespace_as_suffix = value != 0;
      });
    } else if (part == 3) {  // NormalizerSpec.
      ForEachField(bytes, [&](uint64_t field, uint64_t value, std::string_view) {
        if (field == 3) s.add_dummy_prefix = value != 0;
        if (field == 4) s.remove_extra_whitespaces = value != 0;
        if (field == 5) s.escape_whitespaces = value != 0;
      });
    }
  });
  return s;
}

class SentencePiece : public Tokenizer {
 public:
  SentencePiece(const std::string& path, std::string_view model, std::string_view config)
      : path_(path), hash_(HashBytes(config, HashBytes(model))), settings_(ReadSettings(model)) {
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
    if (config.empty()) return;
    constexpr JsonErrors kErrors{
        .raise = [](const std::string& message) { throw DataError(message); },
        .separator = " ",
        .not_json = "is no JSON object"};
    const JsonValue json =
        ParseJson(config, "tokenizer: " + path, kErrors, "tokenizer_config.json beside it");
    if (!json.IsObject()) json.Refuse("is no JSON object");
    const auto asked = json.Find("add_bos_token");
    if (asked && asked->Is("true") && processor_.bos_id() >= 0) bos_ = processor_.bos_id();
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eot() const override { return eot_; }
  uint64_t hash() const override { return hash_; }
  int LeadingSpaces() const override {
    return settings_.add_dummy_prefix || settings_.remove_extra_whitespaces ? 1 : 0;
  }
  std::optional<int32_t> IdOf(std::string_view token) const override {
    const int id = processor_.PieceToId(token);  // The unknown one's where there is no such piece.
    if (id < 0 || id >= vocab_size() || processor_.IdToPiece(id) != token) return std::nullopt;
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
    const auto status = processor_.Encode(part, &ids);
    if (!status.ok()) throw DataError("tokenizer: " + path_ + ": " + status.ToString());
    out.insert(out.end(), ids.begin(), ids.end());
    return true;
  }

  PlacedIds EncodePlaced(std::string_view text) const override {
    PlacedIds out;
    const auto encoded = processor_.EncodeAsImmutableProto(text);
    for (const auto& piece : encoded.pieces()) {
      out.ids.push_back(static_cast<int32_t>(piece.id()));
      out.begins.push_back(piece.begin());
    }
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

  std::string path_;
  uint64_t hash_;
  Settings settings_;
  sentencepiece::SentencePieceProcessor processor_;
  std::vector<std::string> pieces_;
  std::optional<int32_t> bos_, eot_;
  bool whole_ = false;
};

}  // namespace

std::shared_ptr<const Tokenizer> ParseSentencePiece(const std::string& path, std::string_view model,
                                                    std::string_view config) {
  return std::make_shared<const SentencePiece>(path, model, config);
}

}  // namespace fsdp
