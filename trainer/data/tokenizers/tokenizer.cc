#include "trainer/data/tokenizers/tokenizer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "trainer/core/philox.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

class Bytes : public Tokenizer {
 public:
  Bytes() {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i);
  }

  int32_t vocab_size() const override { return kByteVocabSize; }
  uint64_t hash() const override { return HashBytes("bytes"); }
  bool EncodePart(std::string_view text, size_t end, bool,
                  std::vector<int32_t>& out) const override {
    for (const char byte : text.substr(0, end)) out.push_back(static_cast<unsigned char>(byte));
    return true;
  }
  PlacedIds EncodePlaced(std::string_view text) const override {
    PlacedIds out;
    EncodePart(text, text.size(), /*first=*/true, out.ids);
    out.begins.resize(out.ids.size());
    std::iota(out.begins.begin(), out.begins.end(), size_t{0});
    return out;
  }
  size_t PartEnd(std::string_view text, size_t target) const override {
    return std::min(text.size(), target);
  }
  std::string_view Piece(int32_t id) const override {
    if (id < 0 || id >= kByteVocabSize) {
      throw std::invalid_argument("[Piece] token " + std::to_string(id) + " is not a byte");
    }
    return {&bytes_[static_cast<size_t>(id)], 1};
  }

 private:
  std::array<char, 256> bytes_;
};

}  // namespace

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  EncodePart(text, text.size(), /*first=*/true, ids);
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool first) const {
  std::string text;
  TextStream stream(*this, first);
  for (const int32_t id : ids) text += stream.Add(id);
  return text + stream.Finish();
}

std::shared_ptr<const Tokenizer> ByteTokenizer() {
  static const auto tokenizer = std::make_shared<const Bytes>();
  return tokenizer;
}

std::string TextStream::Add(int32_t id) {
  std::string_view piece = tokenizer_.Piece(id);
  for (; strip_ > 0 && !piece.empty(); --strip_) {
    if (!piece.starts_with(' ')) {
      strip_ = 0;
      break;
    }
    piece.remove_prefix(1);
  }
  held_ += piece;
  // The last character stays back while it is well begun and not whole.
  size_t tail = held_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, held_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(held_[held_.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t length = byte < 0xc2 || byte > 0xf4 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    // Whole once it and zeros instead of the rest would be ill-formed anyway: WellFormed() decides.
    if (length > back) {
      std::string probe = held_.substr(held_.size() - back), buffer;
      // An ill-formed start is one U+FFFD for each part of it; a mere beginning is one in all.
      if (WellFormed(probe, buffer).size() == 3) tail = held_.size() - back;
    }
    break;
  }
  std::string out = held_.substr(0, tail);
  held_.erase(0, tail);
  return out;
}

std::string TextStream::Finish() { return std::exchange(held_, {}); }

}  // namespace fsdp
