#include "trainer/recipe/mistakes.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/core/utf8.h"

namespace fsdp::recipe {

std::string ShowPlace(const Place& place, const std::vector<std::string>& sources) {
  const std::string& name = sources.at(place.source);
  if (place.line == 0) return name;
  return name + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
}

void ThrowMistakes(std::vector<RecipeMistake> mistakes, const std::vector<std::string>& sources) {
  std::stable_sort(mistakes.begin(), mistakes.end(),
                   [](const auto& a, const auto& b) { return a.place < b.place; });
  std::unordered_set<std::string> lines;
  std::string text;
  for (const RecipeMistake& mistake : mistakes) {
    std::string line = ShowPlace(mistake.place, sources) + ": ";
    if (!mistake.key.empty()) line += mistake.key + ": ";
    line += mistake.message;
    // Keys and --set can hold anything; a line stays one.
    line = Printable(line);
    std::replace(line.begin(), line.end(), '\n', ' ');
    // A mistake that is read through two aliases counts once.
    const auto [at, is_new] = lines.insert(std::move(line));
    if (is_new && lines.size() <= kMostShown) text += (text.empty() ? "" : "\n") + *at;
  }
  if (lines.size() > kMostShown) {
    const size_t more = lines.size() - kMostShown;
    text += "\n... and " + std::to_string(more) + (more == 1 ? " mistake" : " mistakes") + " more";
  }
  throw ConfigError(text);
}

std::string ReadTextFile(const std::string& path, std::string& text) {
  FileText read = ReadFileText(path, kMostTextBytes, ReadFrom::kPipeToo);
  text += read.text;
  return std::move(read.why);
}

}  // namespace fsdp::recipe
