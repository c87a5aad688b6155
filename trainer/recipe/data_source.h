// A source of data is a row: what a recipe may say of it, what does not fit together, and how a run
// opens it. A row is a source file of sources/, which defines `const DataSource& Source()` in a
// namespace of the source's name, and a line of the list in sources/list.h; docs/adding_a_source.md
// adds one. No other file of the program names a source.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_RECIPE_DATA_SOURCE_H_
#define FSDP_TRAIN_TRAINER_RECIPE_DATA_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/data_files.h"
#include "trainer/data/loader.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokens/token_source.h"
#include "trainer/recipe/containers.h"
#include "trainer/recipe/open_progress.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

class LineEncoder;
class Model;
struct ImageChanges;

// The seed of a source that draws, in a run of this seed; `index`: among KeyedSources(). Sources of
// one list are samples of one language, but not the same one.
uint64_t SeedOf(const Recipe& recipe, const KeyedSource& keyed, size_t index, uint64_t seed);
// The place of a key and its name, for messages of rooms that know no recipe.
std::string WhereIs(const Recipe& recipe, const std::string& key);
// Throws ConfigError where `wants`, a setting, needs an end-of-text token and `what` has none.
void RequireEot(const Recipe& recipe, const std::string& key, bool has_one,
                const std::string& wants, const std::string& what);

// A source to open.
struct SourceToOpen {
  const Recipe& recipe;
  const SourceRecipe& source;
  std::string key;  // "data.train[1]".
  uint64_t seed;    // For data that is drawn.
  int32_t vocab_size;
  std::shared_ptr<const Tokenizer> tokenizer;  // Null where the source has none.
  const OpenProgress& progress;

  std::string Where(const char* name) const { return WhereIs(recipe, key + "." + name); }
  std::string TokenCache() const;
};

// The loaders of a run with one kind of samples.
struct RowLoaders {
  std::unique_ptr<TrainLoader> train;
  std::vector<std::pair<std::string, std::unique_ptr<EvalLoader>>> valid;  // Empty: the only name.
  std::vector<std::string> classes = {};  // Names of those that a model tells apart, if any.
};

// A run whose samples are to be opened.
struct RunToOpen {
  const Recipe& recipe;
  int data_ranks;
  uint64_t seed;
  const ValidRecipe& held_out;  // The part of data.train that is never trained on.
  const OpenProgress& progress;
  DataFiles& files;  // Takes all that are read.
};

// How rows are made of parts, one for each source.
template <typename Part>
struct RowParts {
  // `index`: among KeyedSources(). Adds the files that it reads.
  std::function<Part(const KeyedSource&, size_t index, std::vector<DataFile>& files)> open;
  // Those that are trained on, and the last share of them.
  std::function<std::pair<Part, Part>(const Part& all, double share)> hold_out;
  // `valid`: the evaluation's name; null: the rows to train on.
  std::function<std::shared_ptr<const RowSource>(std::vector<Part>, const std::string* valid)> rows;
};

// Opens all sources, holds out what is held out, and puts the rows into loaders.
template <typename Part>
RowLoaders OpenRows(const RunToOpen& run, const RowParts<Part>& how) {
  const Recipe& recipe = run.recipe;
  const auto* apart = std::get_if<HeldOut>(&run.held_out);      // Never trained on.
  const auto* last = std::get_if<HeldOut>(&recipe.data.valid);  // Evaluated.
  std::vector<Part> train, tails;
  std::vector<std::pair<std::string, std::vector<Part>>> valid;
  size_t index = 0;
  for (const KeyedSource& keyed : KeyedSources(recipe.data)) {
    const bool trains = keyed.list == "data.train";
    Part all = how.open(keyed, index++, trains ? run.files.train : run.files.valid);
    if (!trains) {
      valid.emplace_back(keyed.source->name, std::vector<Part>{std::move(all)});
      continue;
    }
    train.push_back(apart ? how.hold_out(all, apart->fraction).first : all);
    if (last) tails.push_back(how.hold_out(all, last->fraction).second);
  }
  if (last) valid.emplace_back("", std::move(tails));
  const BatchPlanOptions plan{recipe.train.global_batch_size, recipe.train.micro_batch_size,
                              run.data_ranks};
  RowLoaders loaders;
  loaders.train =
      std::make_unique<TrainLoader>(how.rows(std::move(train), nullptr), plan, run.seed);
  if (recipe.eval.every == 0) return loaders;
  for (auto& [name, parts] : valid) {
    auto rows = how.rows(std::move(parts), &name);
    loaders.valid.push_back(
        {name, std::make_unique<EvalLoader>(std::move(rows), plan, recipe.eval.steps)});
  }
  return loaders;
}

// A rule of the recipe that joins keys: whether it holds, the keys that it reads, and what is
// wrong.
using RequireRule =
    std::function<void(bool holds, const std::vector<std::string>& keys, const std::string& what)>;

// A key of data.train.
struct SourceKey {
  recipe::AnyField field;
  bool is_own;  // Another source may not be given it.
};
template <typename Keys>
SourceKey Own(recipe::KeyOf<Keys> key) {
  key.part = [](const void* source) -> const void* {
    return &static_cast<const SourceRecipe*>(source)->own.Of<Keys>();
  };
  key.change_part = [](void* source) -> void* {
    return &static_cast<SourceRecipe*>(source)->own.Change<Keys>();
  };
  return {key, true};
}
inline SourceKey Shared(const recipe::KeyOf<SourceRecipe>& key) { return {key, false}; }

struct DataSource {
  enum class Files { kNeeded, kNone, kChecked };     // data.train.paths; kChecked: by `check`.
  enum class Tokenizer { kNone, kMadeBy, kNeeded };  // kMadeBy: `bytes` says nothing.
  enum class Eot { kNone, kAsked, kNeeded };         // kAsked: by packing or objective.

  std::string_view name;         // In recipes: its folder's in trainer/data/.
  std::string_view description;  // For docs/recipe.md.
  std::vector<SourceKey> keys = {};
  Files files = Files::kNeeded;
  Tokenizer tokenizer = Tokenizer::kNone;
  Eot eot = Eot::kNone;
  std::string_view gives = "tokens";  // Empty: whatever a model asks for.
  std::string_view noun = "document";
  bool is_whole = false;  // Each line is a sample, which windows would cut.
  // Besides `causal`: what data.objective can make of it.
  std::optional<DataRecipe::Objective> objective = std::nullopt;

  // Each may be null. Values that are not given and depend on the objective; rules of its keys, and
  // of its keys with a model that reads what it gives; a line for `config`; a chat template's file.
  void (*fill)(SourceRecipe& source, DataRecipe::Objective objective,
               const std::function<bool(const char* key)>& given) = nullptr;
  void (*check)(const SourceRecipe& source, const std::string& key,
                const RequireRule& require) = nullptr;
  bool (*fits)(const BatchSpec& inputs) = nullptr;  // Null: a model that is fed tokens.
  void (*check_model)(const SourceRecipe& source, const std::string& key, const Model& model,
                      const BatchSpec& inputs, std::vector<ShapeConflict>& conflicts) = nullptr;
  std::string (*describe)(const SourceRecipe& source) = nullptr;
  int64_t (*classes)(const SourceRecipe& source) = nullptr;  // By its names. Throws DataError.
  std::string (*chat_template)(const SourceRecipe& source) = nullptr;
  ImageChanges (*image_changes)(const SourceRecipe& source) = nullptr;  // An evaluation's.

  // How it is opened: as tokens end to end; or by an encoder of lines, with a further file that the
  // samples depend on; or, all sources of a run together, as rows of what a model asks for.
  std::shared_ptr<const TokenSource> (*tokens)(const SourceToOpen& open) = nullptr;
  struct Lines {
    std::shared_ptr<const LineEncoder> encoder;
    std::optional<DataFile> file = std::nullopt;
  };
  Lines (*lines)(const SourceToOpen& open) = nullptr;
  RowLoaders (*rows)(const RunToOpen& run, const Model& model) = nullptr;
  bool checks_by_opening = false;  // A dry run opens these rows, which is quick.
  // A dry run calls this in place of `tokens`, where making them may take long. Returns false where
  // it does not.
  bool (*look)(const SourceToOpen& open) = nullptr;
};

std::span<const DataSource* const> DataSources();
const DataSource& RowOf(const SourceRecipe& source);
// The first of the sources that gives something of its own; else the first of all.
const DataSource& MainRowOf(const DataRecipe& data);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_DATA_SOURCE_H_
