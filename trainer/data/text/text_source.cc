#include "trainer/data/text/text_source.h"

#include <algorithm>

#include "trainer/core/errors.h"
#include "trainer/data/text/text_check.h"

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

}  // namespace fsdp
