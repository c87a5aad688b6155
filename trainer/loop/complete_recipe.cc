#include "trainer/loop/complete_recipe.h"

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "models/shape.h"
#include "trainer/core/errors.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokens/token_manifest.h"
#include "trainer/loop/run_directory.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/initial_weights.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {
namespace {

using Run = std::optional<RunToResume>;

// Sources of data.train or data.valid, with their keys.
template <typename Sources, typename Visit>
void VisitSources(Sources& sources, const std::string& key, const Visit& visit) {
  if (auto* one = std::get_if<SourceRecipe>(&sources)) visit(*one, key);
  auto* list = std::get_if<std::vector<SourceRecipe>>(&sources);
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    visit((*list)[i], key + "[" + std::to_string(i) + "]");
  }
}

bool IsBelow(const std::string& path, const std::string& directory) {
  namespace fs = std::filesystem;
  const std::string inner = fs::absolute(path).lexically_normal();
  const std::string outer = (fs::absolute(directory) / "").lexically_normal();
  return inner.starts_with(outer);
}

// Throws CheckpointError.
void PinInitialWeights(const Run& run, Recipe& recipe) {
  std::string& from = *recipe.model.init_from;
  if (run && run->recipe->model.init_from) {
    // The run that it began with may have gone on since, or be gone.
    if (IsBelow(*run->recipe->model.init_from, from)) from = *run->recipe->model.init_from;
    return;
  }
  std::string found = FindInitialWeights(recipe.model);
  if (found == from) return;
  recipe.notes.push_back("model.init_from: " + found + ", the latest checkpoint of " + from);
  from = std::move(found);
}

// Throws CheckpointError.
std::vector<ShapeConflict> FillTokenizers(const Run& run, Recipe& recipe) {
  std::vector<std::pair<SourceRecipe*, std::string>> open;
  const auto visit = [&](SourceRecipe& source, const std::string& key) {
    if (RowOf(source).tokenizer != DataSource::Tokenizer::kNeeded) return;
    if (recipe.places.count(key + ".tokenizer") == 0) open.emplace_back(&source, key);
  };
  VisitSources(recipe.data.train, "data.train", visit);
  VisitSources(recipe.data.valid, "data.valid", visit);
  if (open.empty()) return {};
  const std::string& from = *recipe.model.init_from;
  std::string name;
  if (const std::string* recorded = run ? TokenizerOf(run->recipe->data) : nullptr)
    name = *recorded;
  if (name.empty()) {
    name = InitialTokenizer(recipe.model).name;
    if (!name.empty()) recipe.notes.push_back("tokenizer: " + name + ", that of model.init_from");
  }
  std::vector<ShapeConflict> mistakes;
  for (const auto& [source, key] : open) {
    if (!name.empty()) {
      source->tokenizer = name;
    } else {
      mistakes.push_back({{key + ".tokenizer"},
                          "required: " + from + " has no tokenizer beside its weights" +
                              HowToGetTokenizer(from) +
                              ". Name the tokenizer.json or .model that they were trained with, or "
                              "`bytes`"});
    }
  }
  return mistakes;
}

struct Vocabulary {
  std::string name;  // The tokenizer's.
  int64_t size = 0;
  uint64_t hash = 0;
};

// The vocabularies of the sources that have a tokenizer or say which one made them. Throws
// DataError.
std::vector<Vocabulary> VocabulariesOf(const DataRecipe& data) {
  std::map<std::string, Vocabulary> opened;
  std::vector<Vocabulary> all;
  for (const KeyedSource& keyed : KeyedSources(data)) {
    if (const std::string* name = TokenizerOf(*keyed.source)) {
      if (opened.count(*name) == 0) {
        const std::shared_ptr<const Tokenizer> tokenizer = OpenTokenizer(*name);
        opened[*name] = {*name, tokenizer->vocab_size(), tokenizer->hash()};
      }
      all.push_back(opened[*name]);
    } else if (RowOf(*keyed.source).tokenizer == DataSource::Tokenizer::kMadeBy) {
      const std::optional<TokenManifest> manifest = ManifestOf(*keyed.source);
      if (manifest) {
        all.push_back({manifest->tokenizer, manifest->vocab_size, manifest->tokenizer_hash});
      }
    }
  }
  return all;
}

void FillVocabulary(const Run& run, Recipe& recipe) {
  ModelRecipe& model = recipe.model;
  if (model.preset || model.init_from || model.fields.contains(recipe::kVocabulary)) return;
  const ModelFamily& family = *FindFamily(*model.family);
  if (family.Find(recipe::kVocabulary) == nullptr) return;
  const auto fill = [&](int64_t size) { model.fields[std::string(recipe::kVocabulary)] = size; };
  if (run) return fill(VocabSize(run->shape));
  std::vector<Vocabulary> all;
  std::string unreadable;
  try {
    all = VocabulariesOf(recipe.data);
  } catch (const DataError& error) {
    unreadable = error.what();
  }
  if (!unreadable.empty()) {
    const int64_t size = RoundedVocabulary(model, VocabSize(family.Standard()));
    fill(size);
    recipe.notes.push_back("vocabulary: " + std::to_string(size) + " tokens, " +
                           std::string(family.name()) + "'s default: " + unreadable);
    return;
  }
  for (const Vocabulary& other : all) {
    if (other.hash != all[0].hash || other.size != all[0].size) return;
  }
  if (all.empty()) return;
  const int64_t size = RoundedVocabulary(model, all[0].size);
  fill(size);
  std::string note = "vocabulary: " + std::to_string(size) + " tokens, ";
  if (size == all[0].size) {
    note += "as many as tokenizer " + all[0].name + " has";
  } else {
    note += "the " + std::to_string(all[0].size) + " of tokenizer " + all[0].name +
            " rounded up to a multiple of " + std::to_string(model.vocab_multiple);
  }
  recipe.notes.push_back(std::move(note));
}

void NoteFiles(const Run& run, Recipe& recipe) {
  if (run) return;
  const std::string& from = *recipe.model.init_from;
  for (const std::string& note : InitialNotes(recipe.model))
    recipe.notes.push_back(from + ": " + note);
}

// The classes of a head that is drawn because the files have none.
void FillClasses(const Run& run, Recipe& recipe) {
  if (run) return;
  const std::string& from = *recipe.model.init_from;
  const ModelShape shape = ReadInitialShape(recipe.model);
  const std::string field(shape.family().head().field);
  if (field.empty() || recipe.model.fields.contains(field)) return;
  if (!FindHeadToDraw(shape, recipe.model).is_missing) return;
  for (const SourceRecipe& source : recipe.data.TrainSources()) {
    const DataSource& row = RowOf(source);
    const int64_t classes = row.classes != nullptr ? row.classes(source) : 0;
    if (classes == 0) continue;
    recipe.model.fields[field] = classes;
    recipe.notes.push_back("model." + field + ": " + std::to_string(classes) +
                           ", the classes of data.train: " + from + " has no head");
    return;
  }
}

// Null where init_from cannot be read: the run says why.
const ModelFamily* FamilyFor(const ModelRecipe& model) {
  if (model.family) return FindFamily(*model.family);
  try {
    return &ReadInitialShape(model).family();
  } catch (const Error&) {
    return nullptr;
  }
}

void FillKeepFp32(Recipe& recipe) {
  const std::string key = "fsdp.mixed_precision.keep_fp32";
  auto& mixed = recipe.fsdp.mixed_precision;
  if (mixed.param_dtype != DType::kFloat16 || recipe.places.count(key) > 0) return;
  const ModelFamily* const family = FamilyFor(recipe.model);
  if (family == nullptr || family->kept_fp32_in_fp16().empty()) return;
  std::string all;
  for (const std::string_view glob : family->kept_fp32_in_fp16()) {
    mixed.keep_fp32.emplace_back(glob);
    all += (all.empty() ? "" : ", ") + std::string(glob);
  }
  recipe.notes.push_back(key + ": " + all + ", as `" + std::string(family->name()) +
                         "` has it in fp16");
}

}  // namespace

std::vector<ShapeConflict> CompleteRecipe(Recipe& recipe) {
  const Run run = FindRunToResume(recipe);
  std::vector<ShapeConflict> mistakes;
  if (recipe.model.init_from) {
    try {
      PinInitialWeights(run, recipe);
      mistakes = FillTokenizers(run, recipe);
      NoteFiles(run, recipe);
      FillClasses(run, recipe);
    } catch (const Error&) {  // No mistake of the recipe: the run says it.
    }
  }
  FillVocabulary(run, recipe);
  FillKeepFp32(recipe);
  CheckpointRecipe& checkpoint = recipe.checkpoint;
  if (recipe.eval.stop_after && checkpoint.keep_last > 0) {
    checkpoint.keep_best = std::max<int64_t>(checkpoint.keep_best, 1);
  }
  return mistakes;
}

}  // namespace fsdp
