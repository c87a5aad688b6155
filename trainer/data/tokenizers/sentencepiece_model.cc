#include "trainer/data/tokenizers/sentencepiece_model.h"

#include <bit>
#include <stdexcept>

#include "trainer/core/json_tree.h"
#include "trainer/data/tokenizers/precompiled_charsmap.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

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

}  // namespace

SentencePieceSettings ReadSentencePieceSettings(std::string_view model) {
  SentencePieceSettings s;
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

std::string WithoutDummyPrefix(std::string_view model) {
  // Messages that come twice are merged: NormalizerSpec (3), add_dummy_prefix (3), 0.
  return std::string(model) + std::string("\x1a\x02\x18\x00", 4);
}

std::string T5TokenizerJson(std::string_view model, int32_t extra_ids, bool finds_all) {
  constexpr uint64_t kUnigram = 1, kControl = 3, kUserDefined = 4;
  JsonTree vocab = JsonTree::List(), added = JsonTree::List();
  std::string charsmap;
  uint64_t kind = kUnigram;
  bool well_formed = true;
  const auto add = [&](std::string_view text, bool special) {
    added.Append(JsonTree::Object({{"id", static_cast<int64_t>(vocab.size())},
                                   {"content", text},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", false},
                                   {"special", special}}));
  };
  const auto read = [&](uint64_t part, uint64_t, std::string_view bytes) {
    std::string_view text;
    float score = 0;
    uint64_t type = 1;
    well_formed &= ForEachField(bytes, [&](uint64_t field, uint64_t value, std::string_view sub) {
      if (part == 1 && field == 1) text = sub;
      if (part == 1 && field == 2 && sub.size() == sizeof(score)) {
        uint32_t bits = 0;
        for (size_t i = 0; i < 4; ++i) {
          bits |= uint32_t{static_cast<unsigned char>(sub[i])} << (8 * i);
        }
        score = std::bit_cast<float>(bits);
      }
      if (part == 1 && field == 3) type = value;
      if (part == 2 && field == 3) kind = value;    // TrainerSpec.model_type.
      if (part == 3 && field == 2) charsmap = sub;  // NormalizerSpec.precompiled_charsmap.
    });
    if (part != 1) return;
    std::string buffer;
    well_formed &= WellFormed(text, buffer).data() == text.data();
    const bool end = text == "</s>" || text == "<unk>" || text == "<pad>";
    if (end || (finds_all && (type == kControl || type == kUserDefined))) {
      add(text, type != kUserDefined);
    }
    vocab.Append(JsonTree::List({text, double{score}}));
  };
  if (!ForEachField(model, read) || !well_formed || vocab.size() < 3) {
    throw std::invalid_argument("is no SentencePiece model of T5Tokenizer");
  }
  if (kind != kUnigram) {
    throw std::invalid_argument("is no unigram model, as T5Tokenizer needs");
  }
  for (int32_t i = extra_ids - 1; i >= 0; --i) {
    const std::string text = "<extra_id_" + std::to_string(i) + ">";
    if (finds_all) add(text, true);
    vocab.Append(JsonTree::List({text, 0.0}));
  }
  JsonTree normalizer;
  if (!charsmap.empty()) {
    normalizer =
        JsonTree::Object({{"type", "Precompiled"}, {"precompiled_charsmap", ToBase64(charsmap)}});
  }
  const JsonTree spaces = JsonTree::Object({{"type", "Metaspace"},
                                            {"replacement", "\xe2\x96\x81"},
                                            {"prepend_scheme", "always"},
                                            {"split", true}});
  return JsonTree::Object(
             {{"added_tokens", added},
              {"normalizer", normalizer},
              {"pre_tokenizer",
               JsonTree::Object(
                   {{"type", "Sequence"},
                    {"pretokenizers",
                     JsonTree::List({JsonTree::Object({{"type", "WhitespaceSplit"}}), spaces})}})},
              {"decoder", spaces},
              {"model", JsonTree::Object({{"type", "Unigram"},
                                          {"unk_id", 2},
                                          {"vocab", vocab},
                                          {"byte_fallback", false}})}})
      .Dump();
}

}  // namespace fsdp
