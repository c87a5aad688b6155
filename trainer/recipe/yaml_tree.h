// YAML text as a tree in which every node knows its place: what errors need and yaml-cpp's own
// nodes do not keep for keys. Events come from yaml-cpp's parser.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_YAML_TREE_H_
#define FSDP_TRAIN_TRAINER_RECIPE_YAML_TREE_H_

#include <memory>
#include <string>
#include <vector>

namespace fsdp::recipe {

// `source` counts the texts of a recipe in the order in which they apply. Lines and columns count
// from 1; line 0 is a --set, whose name is place enough.
struct Place {
  int source = 0;
  int line = 0;
  int column = 0;

  auto operator<=>(const Place&) const = default;
};

struct RecipeMistake {
  Place place;
  std::string key;  // May be empty.
  std::string message;
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry {
    std::string key;
    Place place;  // Where the key is.
    std::shared_ptr<const YamlNode> value;
  };

  Kind kind = Kind::kNull;
  Place place;
  std::string text;    // kScalar.
  bool plain = false;  // kScalar without quotes: may be a number or a boolean.
  std::vector<std::shared_ptr<const YamlNode>> items;  // kList.
  std::vector<Entry> entries;                          // kMap; no key twice.

  const Entry* Find(const std::string& key) const;
};

// One document of YAML 1.2; an empty text is a null. Anchors and aliases work. Refused, by an entry
// in `mistakes` and a null result: bad syntax, text that is not UTF-8, a second document, tags,
// merge keys (<<), keys that are not scalars, an alias inside its own anchor. A duplicate key is a
// mistake that names both lines; the tree keeps the later one, as a reader of it would expect.
// `place_lines` false: a --set, whose nodes all have line 0.
std::shared_ptr<const YamlNode> ParseYaml(const std::string& text, int source, bool place_lines,
                                          std::vector<RecipeMistake>& mistakes);

// The type that YAML 1.2's core schema gives a scalar without quotes.
enum class PlainType { kNull, kBool, kInteger, kNumber, kText };
PlainType ResolvePlain(const std::string& text);

}  // namespace fsdp::recipe

#endif  // FSDP_TRAIN_TRAINER_RECIPE_YAML_TREE_H_
