#include "trainer/data/tokens/kept_tokens.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "trainer/core/errors.h"
#include "trainer/data/atomic_output.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// Whether the name is a written TokensKey() and a run's lock lies beside it: with --dir the cache
// may be anybody's directory.
bool IsSet(const fs::path& path) {
  const std::string name = path.filename();
  std::error_code none;
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos &&
         fs::is_directory(path, none) && fs::exists(path.string() + ".lock", none);
}

}  // namespace

std::vector<KeptTokens> ListKeptTokens(const std::string& cache) {
  std::vector<KeptTokens> all;
  std::error_code error;
  for (fs::directory_iterator at(cache, error), end; !error && at != end; at.increment(error)) {
    if (!IsSet(at->path())) continue;
    KeptTokens kept;
    kept.directory = at->path();
    std::error_code gone;
    for (const auto& file : fs::directory_iterator(at->path(), gone)) {
      const auto size = file.file_size(gone);
      if (!gone) kept.bytes += static_cast<int64_t>(size);
    }
    std::optional<TokenManifest> manifest;
    try {
      manifest = ReadTokenManifest(kept.directory);
    } catch (const DataError&) {
      // Damaged: to be removed all the more.
    }
    if (manifest) {
      kept.tokens = manifest->tokens;
      const size_t more = manifest->inputs.size();
      if (more > 0) kept.inputs = manifest->inputs[0].path;
      if (more > 1) kept.inputs += " and " + std::to_string(more - 1) + " more";
    }
    kept.in_use = !FileLock(kept.directory + ".lock").Try();
    all.push_back(std::move(kept));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw DataError("cache: " + cache + ": " + error.message());
  }
  std::sort(all.begin(), all.end(),
            [](const KeptTokens& a, const KeptTokens& b) { return a.directory < b.directory; });
  return all;
}

bool RemoveKeptTokens(const KeptTokens& kept) {
  FileLock lock(kept.directory + ".lock");  // It stays: others may wait for it.
  if (!lock.Try()) return false;
  std::error_code error;
  fs::remove_all(kept.directory, error);
  if (error) throw DataError("cache: " + kept.directory + ": " + error.message());
  return true;
}

}  // namespace fsdp
