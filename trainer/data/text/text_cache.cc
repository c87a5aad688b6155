#include "trainer/data/text/text_cache.h"

#include <optional>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/data/atomic_output.h"
#include "trainer/data/keep_once.h"
#include "trainer/data/tokens/token_file_source.h"
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
  options.directory = KeptDirectory(cache, TokensKey(*tokenizer, options, inputs));
  const auto from_cache = [&](const auto& read) {
    return ReadKept(options.directory, Describe(inputs), read);
  };
  KeepOnce(
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

}  // namespace fsdp
