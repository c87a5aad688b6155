#include "tests/fuzz/data_targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/tokenizers/hf_tokenizer.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokenizers/unicode.h"
#include "trainer/data/tokens/token_file.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {
namespace {

std::string Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

void Require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

}  // namespace

int FuzzTokenizerJson(const uint8_t* data, size_t size) {
  // Words, runs, marks, what is no UTF-8, special tokens.
  static const std::string text =
      "the  jargon's <s>a\xcc\x81 \xe2\x96\x81 1234 \xf0\x9f\x98\x80\xff\n\nabab  [x] " +
      std::string(60, 'a') + " end of it";
  try {
    const auto tokenizer = ParseHfTokenizer("fuzz", Text(data, size), {});
    std::vector<int32_t> ids = tokenizer->Encode(text);
    for (const int32_t id : ids) {
      Require(id >= 0 && id < tokenizer->vocab_size(), "an id outside the vocabulary");
    }
    tokenizer->Decode(ids);
    std::string buffer;
    const std::string_view whole = WellFormed(text, buffer);
    const PlacedIds placed = tokenizer->EncodePlaced(whole);
    Require(placed.ids == ids && placed.begins.size() == ids.size(), "other ids with their places");
    Require(std::is_sorted(placed.begins.begin(), placed.begins.end()), "places out of order");
    Require(ids.empty() || placed.begins.back() < whole.size(), "a place behind the text");
    for (const std::optional<int32_t> id : {tokenizer->bos(), tokenizer->eot()}) {
      Require(!id || (*id >= 0 && *id < tokenizer->vocab_size()), "an end outside it");
    }
    // In parts, wherever it lets itself be parted.
    std::vector<int32_t> parts, part;
    size_t begin = 0, end = 0;
    while (begin < text.size()) {
      const std::string_view rest = std::string_view(text).substr(begin);
      end = tokenizer->PartEnd(rest, end + 3);
      Require(end > 0 && end <= rest.size(), "a part that ends nowhere");
      part.clear();
      if (!tokenizer->EncodePart(rest, end, begin == 0, part)) {
        Require(end < rest.size(), "a whole text that is refused");
        continue;
      }
      parts.insert(parts.end(), part.begin(), part.end());
      begin += end;
      end = 0;
    }
    Require(parts == ids, "parts that are not the whole");
    return 1;
  } catch (const DataError&) {
    return 0;
  }
}

int FuzzTokenFile(const uint8_t* data, size_t size) {
  // A file of memory alone: a disk would take most of the time.
  static const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  Require(file >= 0, "no file to write to");
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  Require(::ftruncate(file, 0) == 0 && ::pwrite(file, data, size, 0) == static_cast<ssize_t>(size),
          "a file that cannot be written");
  int accepted = 0;
  for (const std::optional<TokenDType> raw :
       {std::optional<TokenDType>(), std::optional(TokenDType::kUint16),
        std::optional(TokenDType::kUint32)}) {
    try {
      const TokenFile file(FileContents(path), raw);
      Require(file.size() > 0, "no tokens");
      Require(file.size() * SizeOf(file.dtype()) <= static_cast<int64_t>(size),
              "more tokens than bytes");
      std::vector<int32_t> tokens(static_cast<size_t>(file.size()));
      file.Read(0, tokens);
      int64_t same = 0;
      for (const int32_t token : tokens) same += token == tokens[0];
      Require(file.Count(0, file.size(), tokens[0]) == same, "a count that is wrong");
      accepted |= raw ? 0 : 1;
    } catch (const DataError&) {
    }
  }
  return accepted;
}

int FuzzTokenManifest(const uint8_t* data, size_t size) {
  try {
    const TokenManifest manifest = ParseTokenManifest("fuzz", Text(data, size));
    Require(ParseTokenManifest("fuzz", ToJson(manifest)).shards == manifest.shards,
            "another manifest when read again");
    return 1;
  } catch (const DataError&) {
    return 0;
  }
}

}  // namespace fsdp
