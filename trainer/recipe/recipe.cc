#include "trainer/recipe/recipe.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "models/shape.h"
#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/core/view.h"
#include "trainer/data/pairs/pair_batch.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/model_fields.h"

namespace fsdp {

Recipe::Recipe() = default;
Recipe::Recipe(const Recipe&) = default;
Recipe::Recipe(Recipe&&) noexcept = default;
// Instantiates no second copy of every variant and list: a second of compile time.
Recipe& Recipe::operator=(const Recipe& other) { return *this = Recipe(other); }
Recipe& Recipe::operator=(Recipe&&) noexcept = default;
Recipe::~Recipe() = default;

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

void Recipe::Refuse(const std::vector<ShapeConflict>& conflicts) const {
  std::string text;
  for (const ShapeConflict& conflict : conflicts) {
    text += (text.empty() ? "" : "\n") + Mistake(conflict.keys, conflict.message);
  }
  if (!text.empty()) throw ConfigError(text);
}

bool Recipe::operator==(const Recipe& other) const {
  const auto parts = [](const Recipe& r) {
    return std::tie(r.run, r.model, r.data, r.train, r.eval, r.optimizer, r.schedule, r.fsdp,
                    r.checkpoint, r.log);
  };
  return parts(*this) == parts(other);
}

bool CheckpointRecipe::Allows(std::string_view change) const {
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

int64_t DataRecipe::TargetLength() const {
  if (objective == Objective::kCausal) return 0;
  if (target_len) return *target_len;
  if (objective == Objective::kSeq2Seq) return seq_len;
  const std::optional<SpanLengths> text = LongestText(spans(), seq_len);
  return text ? text->target() : seq_len;
}

std::string DataRecipe::WantsEot() const {
  if (objective != Objective::kCausal) {
    return "data.objective `" + std::string(Name(objective)) + "`";
  }
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

namespace {

// Whether a recipe may give it another value than the weights that a run begins with.
bool IsTheRecipes(const Field& field, const ModelFamily& family) {
  return field.is_dropout || field.is_free || field.name == family.head().field;
}

// The shape of files with what the recipe may change in it.
ModelShape Changed(const ModelRecipe& model, ModelShape shape) {
  for (const Field& field : shape.family().fields()) {
    const auto given = model.fields.find(field.name);
    if (IsTheRecipes(field, shape.family()) && given != model.fields.end()) {
      shape.Set(field.name, given->second);
    }
  }
  return shape;
}

// No tensor has more than Shape::kMaxElements.
void AddTooLarge(const Recipe& recipe, const DecoderShape& shape,
                 std::vector<ShapeConflict>& conflicts) {
  const int64_t micro = recipe.train.micro_batch_size, seq = recipe.data.seq_len;
  const int64_t row = shape.widest_row;
  if (micro > Shape::kMaxElements / row / seq) {
    conflicts.push_back({{"train.micro_batch_size", "data.seq_len", "model.hidden_size"},
                         "train.micro_batch_size x data.seq_len x " + std::to_string(row) +
                             " elements of a token are " + std::to_string(micro) + " x " +
                             std::to_string(seq) + " x " + std::to_string(row) +
                             ", more than addresses reach"});
  }
}

using Objective = DataRecipe::Objective;

constexpr int64_t kBytes = 256;

void AddObjectiveConflict(const Recipe& recipe, const std::string& a,
                          std::vector<ShapeConflict>& conflicts) {
  if (recipe.data.objective == Objective::kCausal) return;
  conflicts.push_back({{"data.objective", "model.family", "model.preset", "model.init_from"},
                       "`" + std::string(Name(recipe.data.objective)) +
                           "` is for models with an encoder and a decoder, and " + a +
                           " is none: leave it out"});
}

// Conflicts of data with a model that has an encoder and a decoder.
void AddVocabularyConflicts(const Recipe& recipe, int64_t vocabulary,
                            std::vector<ShapeConflict>& conflicts) {
  const DataRecipe& data = recipe.data;
  const std::string of = std::to_string(vocabulary);
  const auto text = data.objective == Objective::kSpanCorruption
                        ? LongestText(data.spans(), data.seq_len)
                        : std::nullopt;
  for (const auto& [source, list, key] : KeyedSources(data)) {
    const std::string* tokenizer = TokenizerOf(*source);
    const bool bytes = tokenizer != nullptr && *tokenizer == "bytes";
    const int64_t spans = bytes && text ? text->spans : 0;
    if (source->eot && *source->eot >= vocabulary - spans) {
      conflicts.push_back(
          {{key + ".eot", "model.vocab_size", "model.preset", "model.init_from"},
           key + ".eot is " + std::to_string(*source->eot) +
               (*source->eot >= vocabulary ? ", outside the vocabulary of " + of
                                           : ", one of the last " + std::to_string(spans) + " of " +
                                                 of + ", which are sentinels")});
    }
    if (bytes && vocabulary < kBytes + spans) {
      conflicts.push_back(
          {{"model.vocab_size", "model.preset", "model.init_from", key},
           "text in bytes needs a vocabulary of at least 256" +
               (spans > 0 ? " and " + std::to_string(spans) + " sentinels" : std::string()) +
               ", got " + of});
    }
  }
}

// Conflicts of the data's sequences with a language model.
void AddTextConflicts(const Recipe& recipe, const ModelShape& shape, const DecoderShape& decoder,
                      std::vector<ShapeConflict>& conflicts) {
  AddObjectiveConflict(recipe, "a `" + std::string(FamilyOf(shape)) + "`", conflicts);
  const std::string vocabulary = std::to_string(decoder.vocab_size);
  if (decoder.vocab_size % recipe.model.vocab_multiple != 0) {
    conflicts.push_back(
        {{"model.vocab_multiple", "model.vocab_size", "model.preset", "model.init_from"},
         "model.vocab_multiple is " + std::to_string(recipe.model.vocab_multiple) +
             ", which rounds up what a tokenizer decides, but the vocabulary is decided already: " +
             vocabulary + ", no multiple of it"});
  }
  const DataRecipe& data = recipe.data;
  const int64_t positions = decoder.max_positions;
  if (data.seq_len > positions) {
    const auto plain = std::get<int64_t>(*shape.Find("max_position_embeddings"));
    std::string message = "data.seq_len is " + std::to_string(data.seq_len) + ", but ";
    if (positions < plain) {
      message += "model.sliding_window is " + std::to_string(positions) +
                 ": sequences that are longer than the window are not in this version";
    } else {
      message += "model.max_position_embeddings is " + std::to_string(plain);
    }
    if (positions > plain) {
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
    const DataSource& row = RowOf(*source);
    if (row.tokens == nullptr && row.lines == nullptr) {
      conflicts.push_back({{key + ".source", key, "model.family", "model.preset"},
                           "`" + source->source + "` gives " + std::string(row.gives) +
                               ", but a `" + std::string(FamilyOf(shape)) + "` asks for tokens"});
    }
    if (row.gives.empty() && decoder.vocab_size < 2) {
      conflicts.push_back({{"model.vocab_size", "model.preset", "model.init_from", key},
                           "source `" + source->source +
                               "` draws from at least 2 tokens, got a vocabulary of " +
                               vocabulary});
    }
    if (source->eot && *source->eot >= decoder.vocab_size) {
      conflicts.push_back({{key + ".eot", "model.vocab_size", "model.preset", "model.init_from"},
                           key + ".eot is " + std::to_string(*source->eot) +
                               ", outside the vocabulary of " + vocabulary});
    }
  }
  if (bytes && decoder.vocab_size < 256) {
    conflicts.push_back(
        {{"model.vocab_size", "model.preset", "model.init_from", "data.train", "data.valid"},
         "text in bytes needs a vocabulary of at least 256, got " + vocabulary});
  }
}

// The smallest model that has all fields of `shape` with which one can be built; `others`: the keys
// of the rest.
std::shared_ptr<Model> BuildMost(const ModelShape& shape, std::vector<std::string>& others) {
  ModelShape most = SmallestAlike(shape);
  for (const Field& field : shape.family().fields()) {
    ModelShape more = most;
    more.Set(field.name, *shape.Find(field.name));
    const bool builds = Validate(more).empty();
    if (builds) most = std::move(more);
    if (!builds) others.push_back("model." + field.name);
  }
  return MakeModel(most);
}

// Conflicts of the data with any other model. `builds`: the shape passes Validate().
void AddOtherConflicts(const Recipe& recipe, const ModelShape& shape, bool builds,
                       std::vector<ShapeConflict>& conflicts) {
  const std::string a = "a `" + std::string(FamilyOf(shape)) + "`";
  std::string asks;
  std::vector<std::string> unknown;  // Keys of the shape that the model does not have.
  const std::shared_ptr<Model> model = builds ? MakeModel(shape) : BuildMost(shape, unknown);
  const BatchSpec spec = model->Inputs(recipe.data.seq_len);
  const bool of_pairs = IsOfPairs(spec), made = recipe.data.objective != Objective::kCausal;
  for (const BatchInput& input : spec.inputs) {
    if (input.role == BatchInput::Role::kWeight) continue;
    asks += (asks.empty() ? "`" : ", `") + input.name + "`";
  }
  std::string reads, draws;  // The source that the model reads; one that draws for any model.
  for (const DataSource* row : DataSources()) {
    if (row->fits && row->fits(spec)) reads = row->name;
    if (row->gives.empty()) draws = row->name;
  }
  const std::vector<KeyedSource> sources = KeyedSources(recipe.data);
  const bool reads_any = std::ranges::any_of(
      sources, [&](const KeyedSource& keyed) { return RowOf(*keyed.source).name == reads; });
  for (const auto& [source, list, key] : sources) {
    const DataSource& row = RowOf(*source);
    if (of_pairs && made) continue;
    if (row.gives.empty()) {
      if (!reads_any) continue;
      conflicts.push_back({{key + ".source", key},
                           "`" + draws + "` stands beside `" + reads +
                               "`: the sources of a run are " + reads + ", or none of them is"});
      continue;
    }
    if (row.fits && row.fits(spec)) {
      std::vector<ShapeConflict> found;
      if (row.check_model) row.check_model(*source, key, *model, spec, found);
      for (ShapeConflict& conflict : found) {
        const bool is_known =
            std::ranges::find_first_of(conflict.keys, unknown) == conflict.keys.end();
        if (is_known) conflicts.push_back(std::move(conflict));
      }
      continue;
    }
    std::string instead = ": `" + draws + "` draws whatever a model asks for";
    if (of_pairs && row.fits == nullptr) {
      instead =
          ": data.objective makes pairs of them, `span_corruption` of text and tokens and "
          "`seq2seq` of pairs";
    } else if (!reads.empty()) {
      instead = ": `" + reads + "` reads them, and `" + draws + "` draws them";
    }
    conflicts.push_back({{key + ".source", key, "model.family", "model.preset"},
                         "`" + source->source + "` gives " + std::string(row.gives) + ", but " + a +
                             " asks for " + asks + instead});
  }
  if (of_pairs) {
    AddVocabularyConflicts(recipe, VocabSize(shape), conflicts);
  } else {
    AddObjectiveConflict(recipe, a, conflicts);
  }
  if (recipe.eval.sample && !shape.family().TargetDecoder(shape)) {
    conflicts.push_back({{"eval.sample", "model.family", "model.preset"},
                         "nothing is generated from " + a + ": set it to null"});
  }
  if (recipe.data.packing != Packing::kWindows) {
    conflicts.push_back({{"data.packing", "model.family", "model.preset"},
                         "packing is of token sequences, which " + a + " is not fed"});
  }
}

// Keys of train.router that the model has no use for.
void AddRouterConflicts(const Recipe& recipe, const ModelShape& shape,
                        std::vector<ShapeConflict>& conflicts) {
  const RouterRecipe& router = recipe.train.router;
  const std::optional<MixtureShape> mixture = shape.family().Mixture(shape);
  const auto refuse = [&](bool is_set, const char* key, const std::string& why) {
    if (!is_set) return;
    conflicts.push_back(
        {{std::string("train.router.") + key, "model.family", "model.preset", "model.init_from"},
         why + ": leave it out"});
  };
  if (!mixture) {
    const std::string none = "this model has no experts";
    refuse(router.aux_loss.value_or(0) > 0, "aux_loss", none);
    refuse(router.aux_scope != BalanceScope::kSequence, "aux_scope", none);
    refuse(router.z_loss > 0, "z_loss", none);
    refuse(router.bias_rate.value_or(0) > 0, "bias_rate", none);
    return;
  }
  refuse(router.bias_rate.value_or(0) > 0 && !mixture->has_bias, "bias_rate",
         "this model's routers have no bias (score_correction_bias)");
}

}  // namespace

BlockCut CutOf(const WrapPolicy& policy) {
  return {.branches = policy.policy == AutoWrap::kBranch,
          .expert_pieces = policy.policy == AutoWrap::kExperts ? policy.expert_pieces : 0};
}

std::optional<ShapeConflict> ExpertPiecesMistake(const Recipe& recipe, const ModelShape& shape) {
  const WrapPolicy& wrap = recipe.fsdp.auto_wrap;
  const std::string key = "fsdp.auto_wrap.expert_pieces";
  if (wrap.policy != AutoWrap::kExperts) {
    if (wrap.expert_pieces == 1) return std::nullopt;
    return ShapeConflict{{key, "fsdp.auto_wrap.policy"},
                         "experts are in pieces with `policy: experts` alone: leave it out, or set "
                         "the policy"};
  }
  const std::optional<MixtureShape> mixture = shape.family().Mixture(shape);
  if (!mixture) {
    return ShapeConflict{{"fsdp.auto_wrap.policy", "model.family", "model.preset"},
                         "this model has no experts: `transformer_block` makes a unit of each "
                         "block"};
  }
  if (mixture->experts < 1 || mixture->experts % wrap.expert_pieces == 0) return std::nullopt;
  return ShapeConflict{{key, "model.num_experts", "model.preset", "model.init_from"},
                       "want a divisor of the " + std::to_string(mixture->experts) +
                           " experts: " + DivisorsOf(mixture->experts) + "; got " +
                           std::to_string(wrap.expert_pieces)};
}

ModelShape ShapeOf(const ModelRecipe& model) {
  if (!model.family) throw std::invalid_argument("[ShapeOf] model.family is empty");
  ModelShape shape = *DefaultShape(*model.family);
  for (const Field& field : shape.family().fields()) {
    const auto given = model.fields.find(field.name);
    if (given != model.fields.end()) {
      shape.Set(field.name, given->second);
    } else if (!field.is_dropout) {
      throw std::invalid_argument("[ShapeOf] model." + field.name + " is empty");
    }
  }
  return shape;
}

int64_t RoundedVocabulary(const ModelRecipe& model, int64_t tokens) {
  const int64_t multiple = model.vocab_multiple;
  return (tokens + multiple - 1) / multiple * multiple;
}

Recipe WithShape(const Recipe& recipe, const ModelShape& shape) {
  Recipe with = recipe;
  with.model.family = FamilyOf(shape);
  for (const recipe::ModelField& of : recipe::ModelFields()) {
    if (of.field.is_dropout) with.model.fields[of.field.name] = 0.0;
  }
  for (const Field& field : shape.family().fields()) {
    with.model.fields[field.name] = *shape.Find(field.name);
  }
  if (const std::optional<MixtureShape> mixture = shape.family().Mixture(shape)) {
    RouterRecipe& router = with.train.router;
    const bool from_files = recipe.model.init_from.has_value();
    const double from_scratch = mixture->softmax ? 0.01 : 0;
    if (!router.aux_loss) router.aux_loss = from_files ? mixture->hf_aux_loss : from_scratch;
    if (!router.bias_rate) router.bias_rate = mixture->has_bias && !from_files ? 0.001 : 0;
  }
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
    for (const std::string& other : mistake.others) keys.push_back("model." + other);
    keys.insert(keys.end(), {"model.preset", "model.init_from", "model.family"});
    conflicts.push_back({std::move(keys), mistake.message});
  }
  const bool builds = conflicts.empty();
  if (builds) AddRouterConflicts(recipe, shape, conflicts);
  const std::string_view classes = shape.family().head().field;
  if (!classes.empty() && std::get<int64_t>(*shape.Find(classes)) == 1) {
    conflicts.push_back({{"model." + std::string(classes), "model.preset", "model.init_from"},
                         "a classifier of one class cannot learn: want at least 2"});
  }
  if (recipe.fsdp.auto_wrap.policy == AutoWrap::kBranch && !shape.family().SplitsBranches()) {
    conflicts.push_back({{"fsdp.auto_wrap.policy", "model.family", "model.preset"},
                         "a `" + std::string(FamilyOf(shape)) +
                             "` is not split into branches: `transformer_block` makes a unit of "
                             "each block"});
  }
  if (const auto mistake = ExpertPiecesMistake(recipe, shape)) conflicts.push_back(*mistake);
  if (const std::optional<DecoderShape> decoder = shape.family().Decoder(shape)) {
    AddTextConflicts(recipe, shape, *decoder, conflicts);
    if (builds) AddTooLarge(recipe, *decoder, conflicts);
  } else {
    AddOtherConflicts(recipe, shape, builds, conflicts);
  }
  return conflicts;
}

std::vector<ShapeConflict> FamilyConflicts(const ModelRecipe& model, std::string_view family) {
  std::vector<ShapeConflict> conflicts;
  const std::string a = "a `" + std::string(family) + "`";
  const ModelFamily& known = *FindFamily(family);
  for (const recipe::ModelField& of : recipe::ModelFields()) {
    const std::string& name = of.field.name;
    const auto given = model.fields.find(name);
    if (given == model.fields.end() || known.Find(name) != nullptr) continue;
    if (of.field.is_dropout && std::get<double>(given->second) == 0) continue;
    const auto meant = std::ranges::find_if(known.fields(), [&](const Field& field) {
      return std::ranges::find(field.elsewhere, name) != field.elsewhere.end();
    });
    conflicts.push_back(
        {{"model." + name, "model.family"},
         a + " has no such " + (of.field.is_dropout ? "dropout" : "field") +
             (meant == known.fields().end() ? "" : "; did you mean `" + meant->name + "`?")});
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
  if (model.family && *model.family != FamilyOf(files)) {
    disagree("model.family", *model.family, std::string(FamilyOf(files)));
  } else {
    if (!model.family) conflicts = FamilyConflicts(model, FamilyOf(files));
    for (const Field& field : files.family().fields()) {
      const auto given = model.fields.find(field.name);
      if (IsTheRecipes(field, files.family()) || given == model.fields.end()) continue;
      const FieldValue found = *files.Find(field.name);
      if (given->second == found) continue;
      disagree("model." + field.name, Show(given->second, field), Show(found, field));
    }
  }
  for (ShapeConflict& conflict : ShapeConflicts(recipe, Changed(model, files))) {
    conflicts.push_back(std::move(conflict));
  }
  return conflicts;
}

ModelShape ShapeOf(const Recipe& recipe, const ModelShape& files, const std::string& where) {
  recipe.Refuse(Disagreements(recipe, files, where));
  return Changed(recipe.model, files);
}

}  // namespace fsdp
