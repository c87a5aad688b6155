#include "trainer/recipe/recipe.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "trainer/core/errors.h"
#include "trainer/core/view.h"
#include "trainer/recipe/shape_fields.h"

namespace fsdp {

std::string Recipe::Mistake(const std::string& key, const std::string& message) const {
  const auto place = places.find(key);
  return (place == places.end() ? "" : place->second + ": ") + key + ": " + message;
}

std::string Recipe::Mistake(const std::vector<std::string>& keys,
                            const std::string& message) const {
  const auto written = std::find_if(keys.begin(), keys.end(),
                                    [&](const std::string& key) { return places.count(key) > 0; });
  return Mistake(written == keys.end() ? keys.at(0) : *written, message);
}

bool Recipe::operator==(const Recipe& other) const {
  const auto parts = [](const Recipe& r) {
    return std::tie(r.run, r.model, r.data, r.train, r.eval, r.optimizer, r.schedule, r.fsdp,
                    r.checkpoint, r.log);
  };
  return parts(*this) == parts(other);
}

bool CheckpointRecipe::Allows(AllowedChange change) const {
  return std::find(allow_changed.begin(), allow_changed.end(), change) != allow_changed.end();
}

std::span<const SourceRecipe> DataRecipe::TrainSources() const {
  if (const auto* one = std::get_if<SourceRecipe>(&train)) return {one, 1};
  return std::get<std::vector<SourceRecipe>>(train);
}

std::span<const SourceRecipe> DataRecipe::ValidSources() const {
  if (const auto* one = std::get_if<SourceRecipe>(&valid)) return {one, 1};
  if (const auto* list = std::get_if<std::vector<SourceRecipe>>(&valid)) return *list;
  return {};
}

std::string DataRecipe::WantsEot() const {
  if (packing == Packing::kWindows) return documents ? "data.documents" : "";
  return "data.packing `" + std::string(Name(packing)) + "`";
}

std::vector<KeyedSource> KeyedSources(const DataRecipe& data) {
  std::vector<KeyedSource> all;
  const auto add = [&](std::span<const SourceRecipe> sources, bool is_list,
                       const std::string& key) {
    for (size_t i = 0; i < sources.size(); ++i) {
      all.push_back({&sources[i], key, is_list ? key + "[" + std::to_string(i) + "]" : key});
    }
  };
  add(data.TrainSources(), std::holds_alternative<std::vector<SourceRecipe>>(data.train),
      "data.train");
  add(data.ValidSources(), std::holds_alternative<std::vector<SourceRecipe>>(data.valid),
      "data.valid");
  return all;
}

std::string_view NounOf(const SourceRecipe& source) {
  switch (source.source) {
    case SourceRecipe::Source::kChat:
      return "conversation";
    case SourceRecipe::Source::kPairs:
      return "pair";
    default:
      return "document";
  }
}

const std::string* TokenizerOf(const SourceRecipe& source) {
  const bool known =
      source.source == SourceRecipe::Source::kText || source.IsWhole() ||
      (source.source == SourceRecipe::Source::kTokens && source.tokenizer != "bytes");
  return known ? &source.tokenizer : nullptr;
}

const std::string* TokenizerOf(const DataRecipe& data) {
  for (const SourceRecipe& source : data.TrainSources()) {
    if (const std::string* tokenizer = TokenizerOf(source)) return tokenizer;
  }
  return nullptr;
}

namespace {

void SetDropouts(const ModelRecipe& model, ModelShape& shape) {
  VisitDropouts(shape, [&](const char* name, double& rate) {
    if (const auto& given = recipe::DropoutOf(model, name)) rate = *given;
  });
}

template <typename T>
std::string Show(const T& value) {
  std::ostringstream text;
  text << std::boolalpha << value;
  return text.str();
}
std::string Show(const RopeScaling& scaling) {
  std::string text = "{type: " + std::string(Name(scaling.type));
  VisitFields(scaling, [&](const char* name, const auto& value) {
    if (value) text += std::string(", ") + name + ": " + Show(*value);
  });
  return text + "}";
}

// No tensor has more than Shape::kMaxElements.
void AddTooLarge(const Recipe& recipe, const ModelShape& shape,
                 std::vector<ShapeConflict>& conflicts) {
  const int64_t micro = recipe.train.micro_batch_size, seq = recipe.data.seq_len;
  const int64_t row = WidestRow(shape);
  if (micro > Shape::kMaxElements / row / seq) {
    conflicts.push_back({{"train.micro_batch_size", "data.seq_len", "model.hidden_size"},
                         "train.micro_batch_size x data.seq_len x " + std::to_string(row) +
                             " elements of a token are " + std::to_string(micro) + " x " +
                             std::to_string(seq) + " x " + std::to_string(row) +
                             ", more than addresses reach"});
  }
}

}  // namespace

ModelShape ShapeOf(const ModelRecipe& model) {
  if (!model.family) throw std::invalid_argument("[ShapeOf] model.family is empty");
  ModelShape shape = *DefaultShape(Name(*model.family));
  VisitFields(shape, [&](const char* name, auto& field) {
    const auto& given = recipe::MemberFor(model, name, field);
    if (!given) throw std::invalid_argument(std::string("[ShapeOf] model.") + name + " is empty");
    field = *given;
  });
  SetDropouts(model, shape);
  return shape;
}

int64_t RoundedVocabulary(const ModelRecipe& model, int64_t tokens) {
  const int64_t multiple = model.vocab_multiple;
  return (tokens + multiple - 1) / multiple * multiple;
}

Recipe WithShape(const Recipe& recipe, const ModelShape& shape) {
  Recipe with = recipe;
  with.model.family = static_cast<ModelRecipe::Family>(shape.index());
  VisitFields(shape, [&](const char* name, const auto& value) {
    recipe::MemberFor(with.model, name, value) = value;
  });
  for (const recipe::Dropout& dropout : recipe::Dropouts()) with.model.*dropout.member = 0;
  VisitDropouts(shape,
                [&](const char* name, double rate) { recipe::DropoutOf(with.model, name) = rate; });
  return with;
}

std::vector<ShapeConflict> ShapeConflicts(const Recipe& recipe, const ModelShape& shape) {
  std::vector<ShapeConflict> conflicts;
  for (const ShapeMistake& mistake : Validate(shape)) {
    std::vector<std::string> keys{"model." + mistake.field};
    if (const size_t dot = mistake.field.find('.'); dot != std::string::npos) {
      const std::string section = "model." + mistake.field.substr(0, dot);
      keys.insert(keys.end(), {section + ".type", section});
    }
    keys.insert(keys.end(), {"model.hidden_size", "model.preset", "model.init_from"});
    conflicts.push_back({std::move(keys), mistake.message});
  }
  if (VocabSize(shape) % recipe.model.vocab_multiple != 0) {
    conflicts.push_back(
        {{"model.vocab_multiple", "model.vocab_size", "model.preset", "model.init_from"},
         "model.vocab_multiple is " + std::to_string(recipe.model.vocab_multiple) +
             ", which rounds up what a tokenizer decides, but the vocabulary is decided already: " +
             std::to_string(VocabSize(shape)) + ", no multiple of it"});
  }
  const DataRecipe& data = recipe.data;
  if (conflicts.empty()) AddTooLarge(recipe, shape, conflicts);
  const int64_t positions = MaxPositions(shape);
  if (data.seq_len > positions) {
    const int64_t plain =
        std::visit([](const auto& config) { return config.max_position_embeddings; }, shape);
    std::string message = "data.seq_len is " + std::to_string(data.seq_len) +
                          ", but model.max_position_embeddings is " + std::to_string(plain);
    if (positions != plain) {
      message += ", which model.rope_scaling stretches to " + std::to_string(positions);
    }
    conflicts.push_back(
        {{"data.seq_len", "model.max_position_embeddings", "model.preset", "model.init_from"},
         message});
  }
  bool bytes = false;
  for (const auto& [source, list, key] : KeyedSources(data)) {
    const std::string* tokenizer = TokenizerOf(*source);
    bytes |= tokenizer != nullptr && *tokenizer == "bytes";
    if (source->source == SourceRecipe::Source::kSynthetic && VocabSize(shape) < 2) {
      conflicts.push_back({{"model.vocab_size", "model.preset", "model.init_from", key},
                           "source `synthetic` draws from at least 2 tokens, got a vocabulary of " +
                               std::to_string(VocabSize(shape))});
    }
    if (source->eot && *source->eot >= VocabSize(shape)) {
      conflicts.push_back({{key + ".eot", "model.vocab_size", "model.preset", "model.init_from"},
                           key + ".eot is " + std::to_string(*source->eot) +
                               ", outside the vocabulary of " + std::to_string(VocabSize(shape))});
    }
  }
  if (bytes && VocabSize(shape) < 256) {
    conflicts.push_back(
        {{"model.vocab_size", "model.preset", "model.init_from", "data.train", "data.valid"},
         "text in bytes needs a vocabulary of at least 256, got " +
             std::to_string(VocabSize(shape))});
  }
  return conflicts;
}

std::vector<ShapeConflict> FamilyConflicts(const ModelRecipe& model, std::string_view family) {
  std::vector<ShapeConflict> conflicts;
  const std::string a = "a `" + std::string(family) + "`";
  std::set<std::string_view> known;
  VisitFields(*DefaultShape(family), [&](const char* name, const auto&) { known.insert(name); });
  for (const recipe::ShapeField& field : recipe::ShapeFields()) {
    if (known.count(field.name) > 0 || !field.IsGiven(model)) continue;
    conflicts.push_back(
        {{"model." + std::string(field.name), "model.family"}, a + " has no such field"});
  }
  known.clear();
  VisitDropouts(*DefaultShape(family), [&](const char* name, double) { known.insert(name); });
  for (const recipe::Dropout& dropout : recipe::Dropouts()) {
    if (known.count(dropout.name) > 0 || (model.*dropout.member).value_or(0) == 0) continue;
    conflicts.push_back(
        {{"model." + std::string(dropout.name), "model.family"}, a + " has no such dropout"});
  }
  return conflicts;
}

std::vector<ShapeConflict> Disagreements(const Recipe& recipe, const ModelShape& files,
                                         const std::string& where) {
  std::vector<ShapeConflict> conflicts;
  const ModelRecipe& model = recipe.model;
  const auto disagree = [&](const std::string& key, const std::string& ours,
                            const std::string& theirs) {
    conflicts.push_back({{key}, "the recipe says " + ours + ", " + where + " says " + theirs});
  };
  if (model.family && Name(*model.family) != FamilyOf(files)) {
    disagree("model.family", std::string(Name(*model.family)), std::string(FamilyOf(files)));
  } else {
    if (!model.family) conflicts = FamilyConflicts(model, FamilyOf(files));
    VisitFields(files, [&](const char* name, const auto& found) {
      const auto& given = recipe::MemberFor(model, name, found);
      if (given && *given != found) {
        disagree(std::string("model.") + name, Show(*given), Show(found));
      }
    });
  }
  for (ShapeConflict& conflict : ShapeConflicts(recipe, files)) {
    conflicts.push_back(std::move(conflict));
  }
  return conflicts;
}

ModelShape ShapeOf(const Recipe& recipe, const ModelShape& files, const std::string& where) {
  std::string text;
  for (const ShapeConflict& conflict : Disagreements(recipe, files, where)) {
    text += (text.empty() ? "" : "\n") + recipe.Mistake(conflict.keys, conflict.message);
  }
  if (!text.empty()) throw ConfigError(text);
  ModelShape shape = files;
  SetDropouts(recipe.model, shape);
  return shape;
}

}  // namespace fsdp
