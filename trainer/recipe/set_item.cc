#include "trainer/recipe/set_item.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "trainer/recipe/reader.h"

namespace fsdp::recipe {
namespace {

using NodePtr = std::shared_ptr<const YamlNode>;

struct Step {
  std::string name;             // A map's entry, or
  std::optional<size_t> index;  // a list's item.
};

// The steps [0], b of "a[0].b"; empty where it is no such key. `text` begins at the bracket.
std::vector<Step> ParseSteps(std::string_view text) {
  std::vector<Step> steps;
  while (!text.empty()) {
    const bool is_index = text[0] == '[';
    if (!is_index && text[0] != '.') return {};
    text.remove_prefix(1);
    const size_t end = is_index ? text.find(']') : std::min(text.find_first_of(".["), text.size());
    if (end == std::string_view::npos || end == 0) return {};
    Step step;
    if (is_index) {
      size_t index = 0;
      const auto [stop, error] = std::from_chars(text.data(), text.data() + end, index);
      if (error != std::errc() || stop != text.data() + end) return {};
      step.index = index;
    } else {
      step.name = text.substr(0, end);
    }
    steps.push_back(std::move(step));
    text.remove_prefix(end + (is_index ? 1 : 0));
  }
  return steps;
}

// Null where the tree does not have the key.
NodePtr Find(const NodePtr& tree, std::string_view dotted) {
  NodePtr node = tree;
  while (node != nullptr) {
    const size_t dot = std::min(dotted.find('.'), dotted.size());
    const YamlNode::Entry* entry = node->Find(std::string(dotted.substr(0, dot)));
    node = entry == nullptr ? nullptr : entry->value;
    if (dot == dotted.size()) break;
    dotted.remove_prefix(dot + 1);
  }
  return node;
}

struct NoSuchPlace {
  std::string why;
};

NodePtr With(const NodePtr& node, const std::string& key, std::span<const Step> steps,
             const Place& place, const NodePtr& value) {
  if (steps.empty()) return value;
  auto copy = std::make_shared<YamlNode>(*node);
  const Step& step = steps[0];
  if (step.index) {
    if (node->kind != YamlNode::Kind::kList) throw NoSuchPlace{key + " is no list"};
    if (*step.index >= node->items.size()) {
      throw NoSuchPlace{key + " is a list of " + std::to_string(node->items.size()) +
                        ", and items count from 0"};
    }
    NodePtr& item = copy->items[*step.index];
    item =
        With(item, key + "[" + std::to_string(*step.index) + "]", steps.subspan(1), place, value);
    return copy;
  }
  if (node->kind != YamlNode::Kind::kMap) throw NoSuchPlace{key + " is no map"};
  auto at = std::find_if(copy->entries.begin(), copy->entries.end(),
                         [&](const YamlNode::Entry& entry) { return entry.key == step.name; });
  if (at == copy->entries.end()) {
    const bool deeper = steps.size() > 1;
    auto empty = std::make_shared<YamlNode>();
    empty->place = place;
    if (deeper && !steps[1].index) empty->kind = YamlNode::Kind::kMap;
    at = copy->entries.insert(at, {step.name, place, std::move(empty)});
  }
  at->value = With(at->value, key + "." + step.name, steps.subspan(1), place, value);
  at->place = place;
  return copy;
}

}  // namespace

SetItem SetInList(const std::string& key, const Place& place, const NodePtr& value,
                  const std::vector<NodePtr>& trees) {
  SetItem set;
  const size_t bracket = key.find('[');
  set.list = key.substr(0, bracket);
  const std::vector<Step> steps = ParseSteps(std::string_view(key).substr(bracket));
  if (steps.empty() || set.list.empty()) {
    set.mistake = "want an item of a list as in data.train[0].weight";
    return set;
  }
  for (auto tree = trees.rbegin(); tree != trees.rend(); ++tree) {
    const NodePtr list = Find(*tree, set.list);
    if (list == nullptr) continue;
    try {
      set.node = With(list, set.list, steps, place, value);
    } catch (const NoSuchPlace& no) {
      set.mistake = no.why;
    }
    return set;
  }
  set.mistake = "nothing before gives a list " + Quoted(set.list) + ": give all of it";
  return set;
}

}  // namespace fsdp::recipe
