#include "trainer/data/text/token_cache.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/data/atomic_output.h"
#include "trainer/data/build_once.h"
#include "trainer/data/tokens/token_file.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {
namespace {

std::string Describe(const std::vector<DataFile>& files) {
  return AndMoreFiles(files[0].path, files.size());
}

class TokenisedText : public TokenSource {
 public:
  TokenisedText(const std::string& directory, std::vector<DataFile> inputs)
      : tokens_(std::vector{directory}), inputs_(std::move(inputs)) {}

  int64_t size() const override { return tokens_.size(); }
  int32_t vocab_size() const override { return tokens_.vocab_size(); }
  std::optional<int32_t> eot() const override { return tokens_.eot(); }
  void Read(int64_t offset, std::span<int32_t> out) const override { tokens_.Read(offset, out); }
  int64_t Count(int64_t offset, int64_t count, int32_t token) const override {
    return tokens_.Count(offset, count, token);
  }
  std::string Describe() const override { return fsdp::Describe(inputs_); }
  std::string Where(int64_t offset) const override { return tokens_.Where(offset); }
  std::vector<DataFile> Files() const override { return inputs_; }

 private:
  TokenFileSource tokens_;
  std::vector<DataFile> inputs_;
};

}  // namespace

std::shared_ptr<const TokenSource> OpenTextTokens(
    const std::string& cache, const std::shared_ptr<const Tokenizer>& tokenizer,
    const std::string& name, TokenizeOptions options,
    const std::function<void(const std::string&)>& say) {
  const std::vector<DataFile> inputs = DescribeInputs(options.files);
  options.directory = BuiltDirectory(cache, TokensKey(*tokenizer, options, inputs));
  const auto from_cache = [&](const auto& read) {
    return ReadBuilt(options.directory, Describe(inputs), read);
  };
  BuildOnce(
      options.directory, Describe(inputs), {say, options.stop, options.silence_s},
      [&] { return from_cache([&] { return ReadTokenManifest(options.directory).has_value(); }); },
      [&](FileLock& lock) {
        TokeniseReport report(Describe(inputs), say);
        options.progress = [&](const TokenizeProgress& p) {
          lock.Touch();
          report(p.share, p.tokens);
        };
        const std::string remarks = Remarks(Tokenize(*tokenizer, name, options));
        if (say && !remarks.empty()) say(Describe(inputs) + ": " + remarks);
      });
  const auto kept = from_cache([&] { return ReadTokenManifest(options.directory); });
  if (kept && !kept->too_invalid_utf8.empty() && !options.allow_invalid_text) {
    throw DataError(kept->too_invalid_utf8);  // Another run allowed it.
  }
  return from_cache([&] { return std::make_shared<TokenisedText>(options.directory, inputs); });
}

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

std::vector<TokenSet> ListTokenSets(const std::string& cache) {
  std::vector<TokenSet> all;
  std::error_code error;
  for (fs::directory_iterator at(cache, error), end; !error && at != end; at.increment(error)) {
    if (!IsSet(at->path())) continue;
    TokenSet kept;
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
            [](const TokenSet& a, const TokenSet& b) { return a.directory < b.directory; });
  return all;
}

bool RemoveTokenSet(const TokenSet& kept) {
  FileLock lock(kept.directory + ".lock");  // It stays: others may wait for it.
  if (!lock.Try()) return false;
  std::error_code error;
  fs::remove_all(kept.directory, error);
  if (error) throw DataError("cache: " + kept.directory + ": " + error.message());
  return true;
}

}  // namespace fsdp
