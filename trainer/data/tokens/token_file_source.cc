#include "trainer/data/tokens/token_file_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {
namespace {

bool IsDirectory(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string FolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// The manifests of the folders that files lie in, each read once.
class Manifests {
 public:
  const std::optional<TokenManifest>& In(const std::string& folder) {
    const auto found = read_.find(folder);
    if (found != read_.end()) return found->second;
    return read_.emplace(folder, ReadTokenManifest(folder)).first->second;
  }

 private:
  std::map<std::string, std::optional<TokenManifest>> read_;
};

int32_t BoundOf(TokenDType dtype) {
  return dtype == TokenDType::kUint16 ? 1 << 16 : std::numeric_limits<int32_t>::max();
}

}  // namespace

TokenFileSource::TokenFileSource(std::span<const std::string> paths,
                                 std::optional<TokenDType> dtype, std::optional<int32_t> eot) {
  Manifests manifests;
  std::vector<std::string> expanded;
  for (std::string& path : ExpandPaths(paths)) {
    const TokenManifest* whole = nullptr;
    if (IsDirectory(path) && manifests.In(path)) whole = &*manifests.In(path);
    if (whole == nullptr) {
      expanded.push_back(std::move(path));
      continue;
    }
    for (const TokenManifest::Shard& shard : whole->shards) {
      expanded.push_back(path + "/" + shard.file);
    }
  }
  starts_.push_back(0);
  const TokenManifest* first = nullptr;
  bool all_listed = true;
  for (std::string& path : expanded) {
    files_.emplace_back(FileContents(std::move(path)), dtype);
    const TokenFile& file = files_.back();
    starts_.push_back(starts_.back() + file.size());
    described_.emplace_back();

    const std::string folder = FolderOf(file.path());
    const std::optional<TokenManifest>& manifest = manifests.In(folder);
    const std::string name = std::filesystem::path(file.path()).filename().string();
    const TokenManifest::Shard* listed = nullptr;
    if (manifest) {
      for (const TokenManifest::Shard& shard : manifest->shards) {
        if (shard.file == name) listed = &shard;
      }
    }
    if (listed == nullptr) {
      all_listed = false;
      vocab_size_ = std::max(vocab_size_, BoundOf(file.dtype()));
      continue;
    }
    if (listed->tokens != file.size()) {
      throw DataError("data: " + file.path() + ": holds " + std::to_string(file.size()) +
                      " tokens, but " + folder + "/" + kTokenManifest + " says " +
                      std::to_string(listed->tokens) + ": tokenize again");
    }
    described_.back() = DescribeFile(file.contents());
    if (described_.back()->hash != listed->hash) {
      throw DataError("data: " + file.path() + ": is damaged: its hash is not the one in " +
                      folder + "/" + kTokenManifest + ": copy it again, or tokenize again");
    }
    vocab_size_ = std::max(vocab_size_, manifest->vocab_size);
    if (first == nullptr) first = &*manifest;
    if (first->tokenizer_hash != manifest->tokenizer_hash || first->eot != manifest->eot) {
      throw DataError("data: " + file.path() + ": made by another tokenizer (" +
                      manifest->tokenizer + ") than the files before it (" + first->tokenizer +
                      "): one source holds tokens of one tokenizer");
    }
  }
  eot_ = eot ? eot : first != nullptr && all_listed ? first->eot : std::nullopt;
}

size_t TokenFileSource::FileOf(int64_t offset) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) -
                             starts_.begin() - 1);
}

template <typename Visit>
void TokenFileSource::ForEachStretch(int64_t offset, int64_t count, const Visit& visit) const {
  for (int64_t done = 0, file = static_cast<int64_t>(FileOf(offset)); done < count; ++file) {
    const size_t f = static_cast<size_t>(file);
    const int64_t begin = offset + done - starts_[f];
    const int64_t n = std::min(count - done, files_[f].size() - begin);
    visit(files_[f], begin, n, done);
    done += n;
  }
}

void TokenFileSource::Read(int64_t offset, std::span<int32_t> out) const {
  internal::CheckRange(*this, offset, std::ssize(out));
  ForEachStretch(offset, std::ssize(out),
                 [&](const TokenFile& file, int64_t begin, int64_t n, int64_t done) {
                   file.Read(begin, out.subspan(static_cast<size_t>(done), static_cast<size_t>(n)));
                 });
}

int64_t TokenFileSource::Count(int64_t offset, int64_t count, int32_t token) const {
  internal::CheckRange(*this, offset, count);
  int64_t found = 0;
  ForEachStretch(offset, count, [&](const TokenFile& file, int64_t begin, int64_t n, int64_t) {
    found += file.Count(begin, n, token);
  });
  return found;
}

std::string TokenFileSource::Describe() const {
  return AndMoreFiles(files_[0].path(), files_.size());
}

std::string TokenFileSource::Where(int64_t offset) const {
  const size_t file = FileOf(offset);
  return files_.at(file).Where(offset - starts_[file]);
}

std::vector<DataFile> TokenFileSource::Files() const {
  std::vector<DataFile> out;
  for (size_t i = 0; i < files_.size(); ++i) {
    out.push_back(described_[i] ? *described_[i] : DescribeFile(files_[i].contents()));
  }
  return out;
}

}  // namespace fsdp
