#include "trainer/data/text_cache.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/data/token_file_source.h"
#include "trainer/data/token_manifest.h"
#include "trainer/data/whole_output.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

std::string Describe(const std::vector<DataFile>& files) {
  const size_t more = files.size() - 1;
  return files[0].path +
         (more == 0 ? ""
                    : " and " + std::to_string(more) + (more == 1 ? " more file" : " more files"));
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

// What has been done, a line every few seconds.
class Reporter {
 public:
  Reporter(std::string what, const std::function<void(const std::string&)>& say)
      : what_(std::move(what)), say_(say), begin_(Clock::now()), last_(begin_) {}

  void operator()(const TokenizeProgress& p) {
    using std::chrono::seconds;
    const auto now = Clock::now();
    if (!say_ || now - last_ < seconds(10)) return;
    last_ = now;
    char text[64];
    std::snprintf(text, sizeof(text), ": %.1f %%, %.1f M tokens", 100 * p.share,
                  static_cast<double>(p.tokens) / 1e6);
    say_("tokenising " + what_ + text);
  }

 private:
  std::string what_;
  const std::function<void(const std::string&)>& say_;
  Clock::time_point begin_, last_;
};

}  // namespace

std::shared_ptr<const TokenSource> OpenTextTokens(
    const std::string& cache, const std::shared_ptr<const Tokenizer>& tokenizer,
    const std::string& name, TokenizeOptions options,
    const std::function<void(const std::string&)>& say) {
  const std::vector<DataFile> inputs = DescribeInputs(options.files);
  char key[17];
  std::snprintf(key, sizeof(key), "%016llx",
                static_cast<unsigned long long>(TokensKey(*tokenizer, options, inputs)));
  options.directory = cache + "/" + key;
  const auto from_cache = [&](const auto& read) {
    try {
      return read();
    } catch (const DataError& error) {
      throw DataError("data: the tokens of " + Describe(inputs) + " that are kept in " +
                      options.directory +
                      " are damaged: delete that directory, and they are made "
                      "again. What is wrong: " +
                      error.what());
    }
  };
  const auto is_there = [&] {
    return from_cache([&] { return ReadTokenManifest(options.directory).has_value(); });
  };
  if (!is_there()) {
    MakeDirectories(cache);
    FileLock lock(cache + "/" + key + ".lock");
    int64_t touched = lock.Touched();
    auto silent_since = Clock::now();
    for (auto last = Clock::now() - std::chrono::hours(1); !lock.Try();) {
      if (const int64_t now = lock.Touched(); now != touched) {
        touched = now;
        silent_since = Clock::now();
      }
      const std::chrono::duration<double> silence = Clock::now() - silent_since;
      if (options.silence_s > 0 && silence.count() > options.silence_s) {
        throw CommError("another process has the lock " + cache + "/" + key + ".lock to tokenise " +
                        Describe(inputs) + " and has done nothing for " +
                        std::to_string(static_cast<int64_t>(silence.count())) + " s");
      }
      if (options.stop && options.stop()) {
        throw Error(ExitCode::kStopped,
                    "stopped while another process tokenised " + Describe(inputs));
      }
      if (say && Clock::now() - last > std::chrono::seconds(60)) {
        say("waiting for another process that tokenises " + Describe(inputs));
        last = Clock::now();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (!is_there()) {
      Reporter report(Describe(inputs), say);
      if (say) say("tokenising " + Describe(inputs) + " into " + options.directory);
      options.progress = [&](const TokenizeProgress& p) {
        lock.Touch();
        report(p);
      };
      const std::string remarks = Remarks(Tokenize(*tokenizer, name, options));
      if (say && !remarks.empty()) say(Describe(inputs) + ": " + remarks);
    }
  }
  const auto kept = from_cache([&] { return ReadTokenManifest(options.directory); });
  if (kept && !kept->too_invalid_utf8.empty() && !options.allow_invalid_text) {
    throw DataError(kept->too_invalid_utf8);  // Another run allowed it.
  }
  return from_cache([&] { return std::make_shared<TokenisedText>(options.directory, inputs); });
}

}  // namespace fsdp
