#include "trainer/data/text/text_check.h"

#include <algorithm>
#include <optional>

#include "trainer/core/errors.h"
#include "trainer/data/decompress.h"
#include "trainer/data/text/file_format.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {

void CheckFormat(const FileContents& file) {
  const std::optional<NoText> found = FindNoText(file.path(), file.bytes());
  if (!found) return;
  file.CheckIntact();  // A lost part reads as zeros.
  throw DataError("data: " + file.path() + ": " + found->what + ": " + found->cure);
}

void CheckFormats(std::span<const std::string> paths) {
  for (const std::string& path : paths) CheckFormat(FileContents(path, FileContents::As::kBegin));
}

std::optional<TooInvalid> FindTooInvalid(const FileContents& file, size_t most) {
  const std::string_view text = file.bytes();
  const IllFormed found = CountIllFormed(text, 0, std::min(most, text.size()));
  if (found.count * kOneInvalidOf <= found.characters) return std::nullopt;
  file.CheckIntact();
  const std::string& path = file.path();
  const std::string in = WithoutCompression(path), iconv = "iconv -f LATIN1 -t UTF-8 ";
  const std::string reader = path.ends_with(".gz") ? "zcat " : "zstdcat ";
  const std::string out = in + (in.ends_with(".jsonl") ? ".utf8.jsonl" : ".utf8.txt");
  TooInvalid too;
  too.what = path + ": " + std::to_string(found.count) + " of " + std::to_string(found.characters) +
             (found.count == 1 ? " places is" : " places are") + " no UTF-8, the first at byte " +
             std::to_string(found.first);
  too.refusal =
      "data: " + too.what + ": convert it, if it is in another encoding: " +
      (in == path ? iconv + ShellWord(path) + " " : reader + ShellWord(path) + " | " + iconv) +
      "> " + ShellWord(out) +
      "; data.allow_invalid_text: true (tokenize: --allow-invalid-text) goes on with it as it is";
  return too;
}

}  // namespace fsdp
