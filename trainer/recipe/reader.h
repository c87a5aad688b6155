// Collects while a recipe's trees are read: mistakes, where each key was written, unusable keys.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_READER_H_
#define FSDP_TRAIN_TRAINER_RECIPE_READER_H_

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/recipe/yaml_tree.h"

namespace fsdp::recipe {

inline constexpr size_t kMostShown = 1000;  // Mistakes.

class RecipeReader {
 public:
  // `known`: every key of the recipe with its dots, for hints about keys in the wrong section.
  explicit RecipeReader(const std::vector<std::string>& known);

  void Mistake(const Place& place, const std::string& key, const std::string& message);
  // "want ..., got ...".
  void Wrong(const YamlNode& node, const std::string& key, const std::string& want);
  // `siblings`: the keys that could stand there, `aliases`: other programs' names for some of them.
  // Returns the sibling that was meant, or nothing.
  std::string UnknownKey(const YamlNode::Entry& entry, const std::string& prefix,
                         const std::vector<std::string>& siblings,
                         const std::map<std::string, std::string>& aliases);
  // Unless the key is there as well, it is missing under its name, and that is no second mistake.
  void Misspelt(const std::string& key) { misspelt_.insert(key); }
  // A map keeps its first place; a value has its last one, where it was decided.
  void Saw(const std::string& key, const Place& place, bool is_map);
  // Drops the keys written below this one: they no longer hold.
  void ForgetBelow(const std::string& key);

  // Whether the key or one above it has a mistake of its own, so that no rule can be checked.
  bool Unusable(const std::string& key) const;

  const std::map<std::string, Place>& places() const { return places_; }
  std::vector<RecipeMistake>& mistakes() { return mistakes_; }

 private:
  // Whether a mistake there may be among the first kMostShown; remembers it. Only those get a hint,
  // whose search takes its time.
  bool MayBeShown(const Place& place, const std::string& key);

  std::set<std::pair<Place, std::string>> first_unknown_;  // At most kMostShown.
  std::set<std::string> listed_;              // Sections whose keys a mistake has listed.
  std::map<std::string, std::string> known_;  // By the last part; empty where several share that.
  std::vector<RecipeMistake> mistakes_;
  std::map<std::string, Place> places_;
  std::set<std::string> maps_;  // Keys in places_ that hold maps.
  std::set<std::string> unusable_, misspelt_;
};

// For messages: `word`; "a, b and c"; "5", "the text `5`", "a list of 2"; "; did you mean `word`?".
std::string Quoted(const std::string& word);
std::string Join(const std::vector<std::string>& words, const std::string& last);
std::string Describe(const YamlNode& node);
std::string DidYouMean(const std::string& word);

// "file:line:column", or the source alone where it has no lines. `sources` by Place::source.
std::string ShowPlace(const Place& place, const std::vector<std::string>& sources);

// ConfigError with a line for each of the first kMostShown, in the order of places; a last line
// says how many more there are.
[[noreturn]] void ThrowMistakes(std::vector<RecipeMistake> mistakes,
                                const std::vector<std::string>& sources);

// Appends the contents of a file or a pipe, at most kMostTextBytes, to `text`. Returns why it
// could not, to stand behind the path, or nothing.
std::string ReadTextFile(const std::string& path, std::string& text);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_READER_H_
