// The steps of a tokenizer.json that a text goes through before the model: normal forms and splits.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_STEPS_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_STEPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/json_reader.h"
#include "trainer/data/tokenizers/precompiled_charsmap.h"
#include "trainer/data/tokenizers/regex.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {

struct HfNormalizer {
  enum class Kind { kForm, kPrepend, kReplace, kPrecompiled, kNmt, kStrip };
  Kind kind;
  NormalForm form = NormalForm::kNfc;
  std::string content = {};         // kPrepend, kReplace.
  std::optional<Regex> regex = {};  // kReplace.
  std::optional<PrecompiledCharsmap> charsmap = {};
  bool left = false, right = false;  // kStrip.
};

struct HfSplitter {
  enum class Kind { kSplit, kPrefixSpace, kMetaspace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  Kind kind;
  std::optional<Regex> regex = {};  // kSplit; kMetaspace that splits.
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
  std::string replacement = {};  // kMetaspace.
  Prepend prepend = Prepend::kNever;
  bool of_bytes = false;  // Behind ByteLevel: splits what its alphabet makes of a text.
};

struct HfSteps {
  std::vector<HfNormalizer> normalizers;
  std::vector<HfSplitter> splitters;  // In this order.
  bool byte_level = false;
  bool needs_space = false;  // A part must begin with a space, or it would get one.
  bool whole = false;        // Documents cannot be encoded in parts.
};

// ByteLevel's alphabet: printable bytes are themselves, the others U+0100 and on (openai/gpt-2,
// src/encoder.py).
uint32_t CharacterOfByte(unsigned char byte);
std::string_view Utf8OfByte(char byte);

// `json`: the file. Throws HfRefused.
HfSteps ReadHfSteps(const JsonValue& json);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_HF_TOKENIZER_STEPS_H_
