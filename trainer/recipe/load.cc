#include "trainer/recipe/load.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "models/family.h"
#include "models/shape.h"
#include "trainer/core/errors.h"
#include "trainer/core/peers_words.h"
#include "trainer/core/round_up.h"
#include "trainer/core/units.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/rules.h"
#include "trainer/recipe/schema.h"

namespace fsdp::recipe {
// A --set that goes into a list: data.train[0].weight=3.
namespace {

struct SetItem {
  std::string list;                      // The key of the list: "data.train".
  std::shared_ptr<const YamlNode> node;  // The list with `value` in its place. Null: a mistake.
  std::string mistake;
};

using NodePtr = std::shared_ptr<const YamlNode>;

struct Step {
  std::string name;             // A map's entry, or
  std::optional<size_t> index;  // a list's item.
};

// The steps [0], b of "a[0].b"; empty where it is no such key. The argument begins at the bracket.
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

// `key` has a `[`. Items count from 0. The list is taken from the last of `trees` that has its key;
// unchanged nodes keep their places.
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

}  // namespace
}  // namespace fsdp::recipe

namespace fsdp {
namespace {

using recipe::AddMistake;
using recipe::CheckRules;
using recipe::HasShape;
using recipe::KnownKeys;
using recipe::ParseYaml;
using recipe::Place;
using recipe::ReadTextFile;
using recipe::RecipeReader;
using recipe::ShowPlace;
using recipe::ThrowMistakes;
using recipe::YamlNode;

// A tree of maps that holds `value` at a.b.c.
std::shared_ptr<const YamlNode> Nest(const std::string& dotted, const Place& place,
                                     std::shared_ptr<const YamlNode> value) {
  size_t end = dotted.size();
  while (true) {
    const size_t dot = end == 0 ? std::string::npos : dotted.rfind('.', end - 1);
    const size_t begin = dot == std::string::npos ? 0 : dot + 1;
    auto map = std::make_shared<YamlNode>();
    map->kind = YamlNode::Kind::kMap;
    map->place = place;
    map->entries.push_back({dotted.substr(begin, end - begin), place, std::move(value)});
    value = std::move(map);
    if (dot == std::string::npos) return value;
    end = dot;
  }
}

// The preset's family; without preset and files a default one, so that mistakes can be looked for.
void FillFamily(ModelRecipe& model) {
  if (model.family) return;
  if (model.preset) {
    model.family = FamilyOf(*FindModelPreset(*model.preset));
  } else if (!model.init_from) {
    model.family = Families()[0]->name();
  }
}

void FillShape(ModelRecipe& model, const DataRecipe& data) {
  const ModelFamily& family = *FindFamily(*model.family);
  const ModelShape* preset = model.preset ? FindModelPreset(*model.preset) : nullptr;
  if (preset && &preset->family() != &family) preset = nullptr;  // A mistake: CheckRules.
  ModelShape shape = preset ? *preset : family.Standard();
  const std::string* tokenizer = TokenizerOf(data);
  if (!preset && family.Find(recipe::kVocabulary) != nullptr) {
    const bool bytes = tokenizer != nullptr && *tokenizer == "bytes";
    const auto standard = std::get<int64_t>(*shape.Find(recipe::kVocabulary));
    shape.Set(recipe::kVocabulary, RoundedVocabulary(model, bytes ? 256 : standard));
  }
  for (const Field& field : family.fields()) {
    const auto given = model.fields.find(field.name);
    if (given != model.fields.end()) shape.Set(field.name, given->second);
  }
  family.FillDependent(shape, [&](std::string_view name) { return model.fields.contains(name); });
  for (const Field& field : family.fields()) {
    if (!field.is_dropout) model.fields[field.name] = *shape.Find(field.name);
  }
}

// Keys of sources whose defaults depend on the objective.
void FillSources(const RecipeReader& reader, DataRecipe& data) {
  const auto fill = [&](SourceRecipe& source, const std::string& key) {
    const auto given = [&](const char* name) {
      return reader.places().count(key + "." + name) > 0;
    };
    if (const auto own = RowOf(source).fill) own(source, data.objective, given);
  };
  const auto fill_all = [&](auto& sources, const std::string& key) {
    if (auto* one = std::get_if<SourceRecipe>(&sources)) fill(*one, key);
    auto* list = std::get_if<std::vector<SourceRecipe>>(&sources);
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      fill((*list)[i], key + "[" + std::to_string(i) + "]");
    }
  };
  fill_all(data.train, "data.train");
  fill_all(data.valid, "data.valid");
}

}  // namespace

Recipe ParseRecipe(const std::vector<RecipeText>& texts, const std::vector<std::string>& overrides,
                   const RecipeCheck& check, const RecipeCompletion& complete) {
  if (texts.empty()) throw ConfigError("no recipe: name a file with --config");
  std::vector<std::string> sources;
  for (const RecipeText& text : texts) sources.push_back(text.name);
  for (const std::string& text : overrides) sources.push_back("--set " + text);

  RecipeReader reader(KnownKeys());
  struct Layer {
    std::shared_ptr<const YamlNode> tree;
    bool is_preset;
  };
  std::vector<Layer> layers;
  bool readable = true;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto tree = ParseYaml(texts[i].text, static_cast<int>(i), true, reader.mistakes());
    readable &= tree != nullptr;
    if (tree && tree->kind != YamlNode::Kind::kNull) layers.push_back({tree, false});
  }
  const size_t files_end = layers.size();
  for (size_t i = 0; i < overrides.size(); ++i) {
    const int source = static_cast<int>(texts.size() + i);
    const Place place{source, 0, 0};
    const size_t equals = overrides[i].find('=');
    if (equals == std::string::npos || equals == 0) {
      reader.mistakes().push_back({place, "", "want KEY=VALUE"});
      continue;
    }
    const std::string key = overrides[i].substr(0, equals);
    const auto value = ParseYaml(overrides[i].substr(equals + 1), source, false, reader.mistakes());
    readable &= value != nullptr;
    if (!value) continue;
    if (key.find('[') == std::string::npos) {
      layers.push_back({Nest(key, place, value), key == "model.preset"});
      continue;
    }
    // A list replaces the list before it, so the whole list is given.
    std::vector<std::shared_ptr<const YamlNode>> trees;
    for (const Layer& layer : layers) trees.push_back(layer.tree);
    const recipe::SetItem set = recipe::SetInList(key, place, value, trees);
    if (set.node) {
      layers.push_back({Nest(set.list, place, set.node), false});
    } else {
      reader.Mistake(place, key, set.mistake);
    }
  }
  // A text that cannot be read may hold any key, so the rules cannot be checked.
  if (!readable) ThrowMistakes(reader.mistakes(), sources);
  // A preset replaces the fields of earlier layers; all overrides count as beside it.
  std::stable_partition(layers.begin() + files_end, layers.end(),
                        [](const Layer& layer) { return layer.is_preset; });

  Recipe recipe;
  for (const Layer& layer : layers) recipe::ReadRecipe(*layer.tree, reader, recipe);
  const bool family_is_null = !recipe.model.family && !recipe.model.init_from;
  FillFamily(recipe.model);
  for (const auto& [key, place] : reader.places()) {
    recipe.places[key] = ShowPlace(place, sources);
  }
  std::vector<ShapeConflict> incomplete;
  if (complete) incomplete = complete(recipe);
  if (HasShape(recipe.model)) FillShape(recipe.model, recipe.data);
  if (!recipe.model.init_from) recipe::FillDropouts(recipe.model.fields);
  if (recipe.train.epochs && reader.places().count("train.steps") == 0) recipe.train.steps = 0;
  const std::vector<KeyedSource> sources_of_data = KeyedSources(recipe.data);
  const auto is_whole = [](const KeyedSource& keyed) { return RowOf(*keyed.source).is_whole; };
  const bool causal = recipe.data.objective == DataRecipe::Objective::kCausal;
  FillSources(reader, recipe.data);
  if (causal && reader.places().count("data.packing") == 0 &&
      std::any_of(sources_of_data.begin(), sources_of_data.end(), is_whole)) {
    recipe.data.packing = Packing::kSamples;
  }
  if (recipe.fsdp.fake() && reader.places().count("checkpoint.every") == 0) {
    recipe.checkpoint.every.reset();
  }
  if (recipe.fsdp.buffers == FsdpOptions::Buffers::kCaching &&
      reader.places().count("fsdp.limiter") == 0) {
    recipe.fsdp.limiter = FsdpOptions::Limiter::kHost;
  }
  CheckRules(reader, recipe, family_is_null);
  if (check) {
    for (const ShapeConflict& found : check(recipe)) AddMistake(reader, found.keys, found.message);
  }
  for (const ShapeConflict& found : incomplete) AddMistake(reader, found.keys, found.message);
  if (!reader.mistakes().empty()) ThrowMistakes(reader.mistakes(), sources);
  return recipe;
}

Recipe LoadRecipe(const std::vector<std::string>& files, const std::vector<std::string>& overrides,
                  const RecipeCheck& check, const RecipeCompletion& complete) {
  std::vector<RecipeText> texts;
  std::string unreadable;
  for (const std::string& file : files) {
    RecipeText text{file, ""};
    if (const std::string why = ReadTextFile(file, text.text); !why.empty()) {
      unreadable += (unreadable.empty() ? "" : "\n") + file + ": " + why;
    }
    texts.push_back(std::move(text));
  }
  if (!unreadable.empty()) throw ConfigError(unreadable);
  return ParseRecipe(texts, overrides, check, complete);
}

namespace {

// fsdp.reshard_after_forward where `shard_size` ranks share a copy.
std::vector<ShapeConflict> ReshardConflicts(const Recipe& recipe, int64_t shard_size) {
  if (!recipe.fsdp.reshard_after_forward) return {};
  const int64_t k = *recipe.fsdp.reshard_after_forward;
  if (k < shard_size && shard_size % k == 0) return {};
  const std::string divisors = DivisorsOf(shard_size, 2, shard_size - 1);
  return {{{"fsdp.reshard_after_forward", "fsdp.shard_size", "fsdp.sharding_strategy"},
           "want null or a divisor of the " + std::to_string(shard_size) +
               " ranks that share a copy, smaller than that: " +
               (divisors.empty() ? "there is none" : divisors) + "; got " + std::to_string(k)}};
}

}  // namespace

std::vector<ShapeConflict> WorldConflicts(const Recipe& recipe, int64_t world_size,
                                          int64_t local_world_size) {
  if (local_world_size < 1 || local_world_size > world_size) {
    throw std::invalid_argument("[WorldConflicts] want 1 <= local_world_size <= world_size, got " +
                                std::to_string(local_world_size) + " and " +
                                std::to_string(world_size));
  }
  std::vector<ShapeConflict> conflicts;
  const TrainRecipe& train = recipe.train;
  const int64_t wave = train.micro_batch_size * world_size;
  const int64_t micro_batches = (train.global_batch_size + wave - 1) / wave;
  // Before the files of init_from are read, the model counts as one block and one unit at each end;
  // so does one that cannot be built.
  int64_t segments = 3;
  if (HasShape(recipe.model)) {
    ModelShape shape = ShapeOf(recipe.model);
    shape.family().CutBlocks(shape, CutOf(recipe.fsdp.auto_wrap));
    if (Validate(shape).empty() && !ExpertPiecesMistake(recipe, shape))
      segments = std::ssize(MakeModel(shape)->segments());
  }
  if (micro_batches > kMaxScheduledRuns / segments) {
    conflicts.push_back({{"train.global_batch_size", "train.micro_batch_size"},
                         "a step of " + Counted(train.global_batch_size, "sequence") + " is " +
                             std::to_string(micro_batches) + " micro-batches of " +
                             std::to_string(train.micro_batch_size) + " on each of " +
                             Counted(world_size, "rank") + ", and its schedule holds at most " +
                             std::to_string(kMaxScheduledRuns / segments) +
                             " of this model: raise train.micro_batch_size"});
  }
  const FsdpOptions& fsdp = recipe.fsdp;
  const Strategy strategy = fsdp.sharding_strategy;
  if (strategy == Strategy::kNoShard) return conflicts;
  const bool hybrid = IsHybrid(strategy);
  const int64_t size = fsdp.shard_size.value_or(world_size);
  const std::string got = " got " + std::to_string(size);
  const std::vector<std::string> keys = {"fsdp.shard_size", "fsdp.sharding_strategy"};
  if (hybrid && world_size % size != 0) {
    conflicts.push_back({keys, "want a divisor of the world size " + std::to_string(world_size) +
                                   ": " + DivisorsOf(world_size) + ";" + got});
  } else if (!hybrid && size != world_size) {
    const bool keeps = strategy == Strategy::kShardGradOp;
    conflicts.push_back({keys, "want null or the world size " + std::to_string(world_size) +
                                   " for `" + std::string(Name(strategy)) + "`," + got +
                                   "; sharding in groups is `" +
                                   (keeps ? "hybrid_shard_grad_op" : "hybrid_shard") + "`"});
  } else if (fsdp.shard_size || !hybrid) {  // Otherwise hosts decide.
    for (ShapeConflict& conflict : ReshardConflicts(recipe, size)) {
      conflicts.push_back(std::move(conflict));
    }
  }
  return conflicts;
}

void CheckWorld(const Recipe& recipe, int64_t world_size, int64_t local_world_size) {
  recipe.Refuse(WorldConflicts(recipe, world_size, local_world_size));
}

void CheckReshard(const Recipe& recipe, int64_t shard_size) {
  recipe.Refuse(ReshardConflicts(recipe, shard_size));
}

std::string KeyOfFlag(const std::string& flag) {
  if (!flag.starts_with("--")) return "";
  std::string word = flag.substr(2, flag.find('=') - 2);
  std::ranges::replace(word, '-', '_');
  const size_t dot = word.find('.');
  const PeersWord* const section =
      dot == std::string::npos ? nullptr : FindPeersWord(PeersKeys(), word.substr(0, dot + 1));
  if (section != nullptr) word.replace(0, dot, section->ours);
  std::vector<std::string> found;
  for (const std::string& key : KnownKeys()) {
    if (key == word) return key;
    if (key.ends_with("." + word)) found.push_back(key);
  }
  if (found.size() == 1) return found[0];
  const PeersWord* peers = FindPeersWord(PeersKeys(), word);
  if (peers == nullptr) peers = FindPeersWord(PeersKeys(), word.substr(word.rfind('.') + 1));
  return peers == nullptr || !peers->HasOurs() ? "" : std::string(peers->ours);
}

std::string DivisorsOf(int64_t n, int64_t least, int64_t most) {
  std::vector<std::string> divisors;
  for (int64_t d = least; d <= std::min(n, most); ++d) {
    if (n % d == 0) divisors.push_back(std::to_string(d));
  }
  if (divisors.empty()) return "";
  std::string text = divisors[0];
  for (size_t i = 1; i < divisors.size(); ++i) {
    text += (i + 1 < divisors.size() ? ", " : " or ") + divisors[i];
  }
  return text;
}

}  // namespace fsdp
