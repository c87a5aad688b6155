// `tokenize`, and `cache`: the tokens that runs keep.
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cmd/commands.h"
#include "trainer/core/cache_directory.h"
#include "trainer/core/terminal.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/text/token_cache.h"
#include "trainer/data/text/tokenize.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {
namespace {

void ListCache(const std::string& cache) {
  const std::vector<TokenSet> all = ListTokenSets(cache);
  if (all.empty()) std::printf("%s: no tokens\n", PrintableName(cache).c_str());
  for (const TokenSet& kept : all) {
    const std::string what = kept.tokens == 0 ? "not finished"
                                              : HumanCount(static_cast<double>(kept.tokens)) +
                                                    " tokens of " + kept.inputs;
    std::printf("%s  %s  %s%s\n", PrintableName(kept.directory).c_str(),
                HumanBytes(kept.bytes).c_str(), PrintableName(what).c_str(),
                kept.in_use ? ", is being written" : "");
  }
}

void CleanCache(const std::string& cache) {
  int64_t bytes = 0;
  int sets = 0;
  for (const TokenSet& kept : ListTokenSets(cache)) {
    if (!RemoveTokenSet(kept)) {
      std::printf("%s: left, it is being written\n", PrintableName(kept.directory).c_str());
      continue;
    }
    bytes += kept.bytes;
    ++sets;
  }
  std::printf("%s: removed %d %s of tokens, %s\n", PrintableName(cache).c_str(), sets,
              sets == 1 ? "set" : "sets", HumanBytes(bytes).c_str());
}

struct TokenizeFlags {
  std::string tokenizer, out, column = "text";
  std::vector<std::string> files;
  bool allow_invalid_text = false;
  int threads = 0;
  int64_t shard_tokens = 100'000'000;
  int64_t eot = -1;
};

// Shows how far the command is. An interrupted one goes on: what was there does not count.
struct TokenizeLine {
  ProgressLine line = {};
  double first = 0, first_share = -1;

  void operator()(const TokenizeProgress& p) {
    if (!line.IsDue() || p.share <= 0) return;
    const double now = line.Seconds();
    if (first_share < 0) first_share = p.share, first = now;
    char percent[32];
    std::snprintf(percent, sizeof(percent), "%5.1f %%, ", 100 * p.share);
    std::string text = percent + HumanCount(static_cast<double>(p.tokens)) + " tokens";
    if (p.share > first_share) {
      text +=
          ", " + HumanDuration((now - first) * (1 - p.share) / (p.share - first_share)) + " left";
    }
    line.Show(text);
  }
};

void RunTokenize(const TokenizeFlags& flags) {
  TokenizeOptions options;
  options.files = flags.files;
  options.directory = flags.out;
  options.column = flags.column;
  options.allow_invalid_text = flags.allow_invalid_text;
  if (flags.eot >= 0) options.eot = static_cast<int32_t>(flags.eot);
  options.shard_tokens = flags.shard_tokens;
  options.threads = flags.threads;
  TokenManifest manifest;
  {
    TokenizeLine line;
    options.progress = std::ref(line);
    manifest = Tokenize(*OpenTokenizer(flags.tokenizer), flags.tokenizer, options);
  }
  std::printf("%s: %s of %s in %s, end-of-text %s\n", PrintableName(flags.out).c_str(),
              Counted(manifest.tokens, "token").c_str(),
              Counted(manifest.documents, "document").c_str(),
              Counted(std::ssize(manifest.shards), "shard").c_str(),
              manifest.eot ? std::to_string(*manifest.eot).c_str() : "none");
  if (const std::string remarks = Remarks(manifest); !remarks.empty()) {
    std::printf("%s\n", Printable(remarks).c_str());
  }
}

}  // namespace

Command CacheCommand() {
  Command cache{"cache", "List and remove the tokens that runs keep in data.cache"};
  const auto add = [&](const char* name, const char* about, void (*run)(const std::string&)) {
    const auto directory = std::make_shared<std::string>(CacheDirectory("tokens"));
    Command command{name, about};
    command.flags = {{"--dir", directory.get(), "The recipe's data.cache, where it names one",
                      FlagRules{.value = "DIR", .shows_default = true}}};
    command.run = [directory, run] { run(*directory); };
    cache.commands.push_back(command);
  };
  add("ls", "List each set with its size and its files", ListCache);
  add("clean", "Remove all sets except those that a process is writing; runs make theirs again",
      CleanCache);
  return cache;
}

Command TokenizeCommand() {
  constexpr double kMostTokens = std::numeric_limits<int32_t>::max();
  const auto flags = std::make_shared<TokenizeFlags>();
  Command command{
      "tokenize",
      "Write the tokens of text files as shards for `source: tokens`. Each file is a document,\n"
      "in JSON each object; .gz and .zst are decompressed. After an interruption the same command\n"
      "goes on where it stopped."};
  command.flags = {
      {"--tokenizer", &flags->tokenizer, "bytes, a tokenizer.json or a SentencePiece .model",
       kRequiredPath},
      {"--out", &flags->out, "Directory of the shards", kRequiredPath},
      {"--column", &flags->column, "Field of JSON objects that holds the text", kShowsDefault},
      {"--eot", &flags->eot, "Token that ends each document. Default: the tokenizer's",
       FlagRules{.range = {0, kMostTokens}}},
      {"--shard-tokens", &flags->shard_tokens, "Tokens of a shard",
       FlagRules{.range = {1, kMostTokens}, .shows_default = true}},
      {"--threads", &flags->threads,
       "CPU threads; 0: one per core. The output does not depend on it",
       FlagRules{.range = {0, 4096}, .shows_default = true}},
      {"--allow-invalid-text", &flags->allow_invalid_text,
       "Accept files of which more than 0.1 % is not UTF-8; it is read as U+FFFD"},
      {"files", &flags->files,
       "Files, globs, or directories, which stand for the text files in them", kRequiredPath},
  };
  command.run = [flags] { RunTokenize(*flags); };
  return command;
}

}  // namespace fsdp
