#include "trainer/recipe/reader.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/nearest.h"
#include "trainer/core/peers_words.h"
#include "trainer/core/read_file.h"
#include "trainer/core/utf8.h"

namespace fsdp::recipe {

std::string Quoted(const std::string& word) { return "`" + word + "`"; }

std::string Join(const std::vector<std::string>& words, const std::string& last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " " + last + " " : ", ";
    text += words[i];
  }
  return text;
}

std::string DidYouMean(const std::string& word) { return "; did you mean " + Quoted(word) + "?"; }

RecipeReader::RecipeReader(const std::vector<std::string>& known) {
  for (const std::string& key : known) {
    const size_t dot = key.rfind('.');
    const auto [at, is_new] =
        known_.emplace(dot == std::string::npos ? key : key.substr(dot + 1), key);
    if (!is_new) at->second.clear();
  }
}

void RecipeReader::Mistake(const Place& place, const std::string& key, const std::string& message) {
  mistakes_.push_back({place, key, message});
  unusable_.insert(key);
}

void RecipeReader::Wrong(const YamlNode& node, const std::string& key, const std::string& want) {
  Mistake(node.place, key, "want " + want + ", got " + Describe(node));
}

namespace {

// "data.train[1].type" -> "data.train.type"
std::string WithoutItems(std::string key) {
  for (size_t at; (at = key.find('[')) != std::string::npos;) {
    const size_t end = std::min(key.find(']', at), key.size() - 1);
    key.erase(at, end - at + 1);
  }
  return key;
}

// The row of a key that holds a map, where there is one of its own.
const PeersWord* FindPeersKey(const std::string& key, bool is_map) {
  const PeersWord* const of_map = is_map ? FindPeersWord(PeersKeys(), key + ".") : nullptr;
  return of_map != nullptr ? of_map : FindPeersWord(PeersKeys(), key);
}

// Names of sections have little to do with what stands in them: spelling alone tells these.
std::string NearSibling(const std::string& key, const std::string& section,
                        const std::vector<std::string>& siblings) {
  if (!section.empty()) return Nearest(key, siblings);
  const std::string first = key.substr(0, key.find('.'));
  return NearestSpelling(first, siblings);
}

}  // namespace

bool RecipeReader::MayBeShown(const Place& place, const std::string& key) {
  if (first_unknown_.size() == kMostShown && place > first_unknown_.rbegin()->first) return false;
  first_unknown_.emplace(place, key);
  if (first_unknown_.size() > kMostShown) first_unknown_.erase(std::prev(first_unknown_.end()));
  return true;
}

std::string RecipeReader::UnknownKey(const YamlNode::Entry& entry, const std::string& prefix,
                                     const std::vector<std::string>& siblings,
                                     const std::map<std::string, std::string>& aliases) {
  if (!MayBeShown(entry.place, prefix + entry.key)) {
    Mistake(entry.place, prefix + entry.key, "unknown key");
    return "";
  }
  const std::string section = WithoutItems(prefix);
  const bool is_map = entry.value->kind == YamlNode::Kind::kMap;
  std::string near, elsewhere;
  const PeersWord* peers = nullptr;
  const auto known = known_.find(entry.key);  // The only key of that name in another section.
  if (const auto alias = aliases.find(entry.key); alias != aliases.end()) {
    near = alias->second;
  } else {
    peers = FindPeersKey(section + entry.key, is_map);
    if (peers == nullptr && known != known_.end()) elsewhere = known->second;
    if (peers == nullptr && elsewhere.empty()) peers = FindPeersKey(entry.key, is_map);
    if (peers == nullptr && elsewhere.empty()) near = NearSibling(entry.key, section, siblings);
  }
  std::string message = "unknown key";
  if (peers != nullptr) {
    PeersWord hint = *peers;
    // A key of the same section is named without the section.
    if (hint.HasOurs() && hint.ours.starts_with(section) &&
        hint.ours.rfind('.') + 1 == section.size()) {
      hint.ours.remove_prefix(section.size());
      near = hint.ours;
    }
    message += "; " + HintOf(hint);
  } else if (!near.empty() || !elsewhere.empty()) {
    message += DidYouMean(near.empty() ? elsewhere : near);
  } else if (listed_.insert(section).second) {
    message += "; known here: " + Join(siblings, "and");
  }
  Mistake(entry.place, prefix + entry.key, message);
  return near;
}

void RecipeReader::Saw(const std::string& key, const Place& place, bool is_map) {
  if (is_map && maps_.count(key) > 0) return;
  places_[key] = place;
  if (is_map) {
    maps_.insert(key);
  } else {
    maps_.erase(key);
  }
}

void RecipeReader::ForgetBelow(const std::string& key) {
  for (const char* below : {".", "["}) {
    const std::string prefix = key + below;
    auto end = places_.lower_bound(prefix);
    while (end != places_.end() && end->first.starts_with(prefix)) end = places_.erase(end);
  }
}

bool RecipeReader::Unusable(const std::string& key) const {
  const auto is_unusable = [&](const std::string& one) {
    return unusable_.contains(one) || (misspelt_.contains(one) && !places_.contains(one));
  };
  if (is_unusable("")) return true;
  for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    if (is_unusable(key.substr(0, dot))) return true;
  }
  // A list is as good as its items.
  const auto item = unusable_.lower_bound(key + "[");
  if (item != unusable_.end() && item->starts_with(key + "[")) return true;
  return is_unusable(key);
}

std::string Describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kList:
      return "a list of " + std::to_string(node.items.size());
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kScalar:
      break;
  }
  std::string text = node.text;
  if (text.size() > 60) {
    size_t end = 57;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // UTF-8.
    text = text.substr(0, end) + "...";
  }
  const bool text_type = !node.plain || ResolvePlain(node.text) == PlainType::kText;
  return text_type ? "the text " + Quoted(text) : text;
}

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
