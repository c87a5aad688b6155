#include "trainer/data/text/text_source.h"

#include <algorithm>
#include <optional>

#include "trainer/core/errors.h"
#include "trainer/core/paths.h"
#include "trainer/data/decompress.h"
#include "trainer/data/text/file_format.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
TextSource::TextSource(std::span<const std::string> paths, bool allow_invalid) {
  starts_.push_back(0);
  for (std::string& path : ExpandTextPaths(paths)) {
    files_.emplace_back(std::move(path));
    CheckFormat(files_.back());
    starts_.push_back(starts_.back() + std::ssize(files_.back().bytes()));
  }
  for (const FileContents& file : files_) {
    const auto found = FindTooInvalid(file, static_cast<size_t>(kHashedWhole));
    if (found && !allow_invalid) throw DataError(found->refusal);
    if (found && too_invalid_.empty()) too_invalid_ = found->what;
  }
}

size_t TextSource::FileOf(int64_t offset) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) -
                             starts_.begin() - 1);
}

void TextSource::Read(int64_t offset, std::span<int32_t> out) const {
  internal::CheckRange(*this, offset, std::ssize(out));
  for (size_t done = 0, file = FileOf(offset); done < out.size(); ++file) {
    const std::string_view bytes = files_[file].bytes().substr(
        static_cast<size_t>(offset + static_cast<int64_t>(done) - starts_[file]),
        out.size() - done);
    std::transform(bytes.begin(), bytes.end(), out.begin() + static_cast<ptrdiff_t>(done),
                   [](char byte) { return static_cast<unsigned char>(byte); });
    files_[file].CheckIntact();
    done += bytes.size();
  }
}

std::string TextSource::Describe() const { return AndMoreFiles(files_[0].path(), files_.size()); }

std::string TextSource::Where(int64_t offset) const {
  const size_t file = FileOf(offset);
  return files_.at(file).path() + ", byte " + std::to_string(offset - starts_[file]);
}

std::vector<DataFile> TextSource::Files() const {
  std::vector<DataFile> out;
  for (const FileContents& file : files_) out.push_back(DescribeFile(file));
  return out;
}

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
