#include "cmd/cache_command.h"

#include <cstdio>
#include <memory>
#include <string>

#include "trainer/core/cache_directory.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/kept_tokens.h"

namespace fsdp {
namespace {

void List(const std::string& cache) {
  const std::vector<KeptTokens> all = ListKeptTokens(cache);
  if (all.empty()) std::printf("%s: no tokens\n", PrintableName(cache).c_str());
  for (const KeptTokens& kept : all) {
    const std::string what = kept.tokens == 0 ? "not finished"
                                              : HumanCount(static_cast<double>(kept.tokens)) +
                                                    " tokens of " + kept.inputs;
    std::printf("%s  %s  %s%s\n", PrintableName(kept.directory).c_str(),
                HumanBytes(kept.bytes).c_str(), PrintableName(what).c_str(),
                kept.in_use ? ", is being written" : "");
  }
}

void Clean(const std::string& cache) {
  int64_t bytes = 0;
  int sets = 0;
  for (const KeptTokens& kept : ListKeptTokens(cache)) {
    if (!RemoveKeptTokens(kept)) {
      std::printf("%s: left, it is being written\n", PrintableName(kept.directory).c_str());
      continue;
    }
    bytes += kept.bytes;
    ++sets;
  }
  std::printf("%s: removed %d %s of tokens, %s\n", PrintableName(cache).c_str(), sets,
              sets == 1 ? "set" : "sets", HumanBytes(bytes).c_str());
}

}  // namespace

void AddCacheCommand(CLI::App& app) {
  CLI::App* cache =
      app.add_subcommand("cache", "List and remove the tokens that runs keep in data.cache");
  cache->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, void (*run)(const std::string&)) {
    CLI::App* command = cache->add_subcommand(name, help);
    const auto directory = std::make_shared<std::string>(CacheDirectory("tokens"));
    command->add_option("--dir", *directory, "The recipe's data.cache, where it names one")
        ->type_name("DIR")
        ->expected(1)
        ->capture_default_str();
    command->callback([directory, run] { run(*directory); });
  };
  add("ls", "List each set with its size and its files", List);
  add("clean", "Remove all sets except those that a process is writing; runs make theirs again",
      Clean);
}

}  // namespace fsdp
