#include "trainer/loop/click_data.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/data/clicks/click_batch.h"
#include "trainer/data/clicks/click_rows.h"
#include "trainer/data/clicks/csv_clicks.h"
#include "trainer/data/clicks/planted_clicks.h"
#include "trainer/nn/model.h"
#include "trainer/nn/table.h"

namespace fsdp {
namespace {

using Sources = std::vector<ClickSource>;

// Opens sources for the columns of one model.
class Opener {
 public:
  Opener(const Recipe& recipe, const Model& model) : recipe_(recipe) {
    columns_.dense = model.Inputs(recipe.data.seq_len).inputs[kDense].sample[0];
    for (const EmbeddingTable& table : model.tables()) {
      columns_.bags.push_back(table.bag);
      rows_.push_back(table.rows);
    }
  }

  // `number`: the source's, counted over train and valid together.
  ClickSource Open(const KeyedSource& keyed, size_t number, std::vector<DataFile>& files) const {
    const SourceRecipe& source = *keyed.source;
    if (source.source != SourceRecipe::Source::kClicks) {
      throw ConfigError(recipe_.Mistake(
          std::vector<std::string>{keyed.key + ".source", keyed.key},
          "`" + std::string(Name(source.source)) +
              "` stands beside `clicks`: the sources of a run are clicks, or none of them is"));
    }
    std::shared_ptr<const ClickStore> store;
    if (source.planted) {
      store = std::make_shared<const PlantedClicks>(columns_, rows_, *source.planted,
                                                    HashBytes("data.planted", number));
    } else {
      const auto where = [&](const char* name) {
        std::string place = recipe_.Mistake(keyed.key + "." + name, "");
        place.resize(place.size() - 2);
        return place;
      };
      store = OpenCsvClicks({source.paths, source.label, source.dense, source.categorical, columns_,
                             where("paths"), where("label"), where("dense"), where("categorical")});
    }
    for (DataFile& file : store->Files()) files.push_back(std::move(file));
    ClickSource all = ClickRows::Whole(std::move(store));
    all.weight = source.weight;
    return all;
  }

 private:
  const Recipe& recipe_;
  ClickColumns columns_;
  std::vector<int64_t> rows_;
};

// In words, the loss that no model gets below, by the first of each source's clicks. Empty: nobody
// knows it.
std::string FloorWords(const std::string& name, const Sources& sources) {
  constexpr size_t kLookedAt = size_t{1} << 16;
  double entropy = 0, normalized = 0, weight = 0;
  for (const ClickSource& source : sources) {
    if (!source.store->Probability(source.clicks[0])) return "";
    const std::span<const int64_t> clicks(source.clicks.data(),
                                          std::min(source.clicks.size(), kLookedAt));
    const ClickFloor floor = FloorOf(*source.store, clicks);
    entropy += source.weight * floor.entropy;
    normalized += source.weight * floor.normalized;
    weight += source.weight;
  }
  char text[160];
  std::snprintf(text, sizeof(text),
                ": the function that these clicks are drawn from has a loss of %.4f, a normalized "
                "entropy of %.4f: no model goes below, but for luck",
                entropy / weight, normalized / weight);
  return "data.valid" + (name.empty() ? "" : " `" + name + "`") + text;
}

}  // namespace

bool ReadsClicks(const DataRecipe& data) {
  return std::ranges::any_of(KeyedSources(data), [](const KeyedSource& keyed) {
    return keyed.source->source == SourceRecipe::Source::kClicks;
  });
}

RowLoaders OpenClickData(const Recipe& recipe, const Model& model, int data_ranks, uint64_t seed,
                         const ValidRecipe& held_out,
                         const std::function<void(const std::string&)>& remark, DataFiles& files) {
  const auto* apart = std::get_if<HeldOut>(&held_out);          // Never trained on.
  const auto* last = std::get_if<HeldOut>(&recipe.data.valid);  // Evaluated.
  const Opener opener(recipe, model);
  Sources train, tails;
  std::vector<std::pair<std::string, Sources>> valid;
  for (const KeyedSource& keyed : KeyedSources(recipe.data)) {
    const bool trains = keyed.list == "data.train";
    const ClickSource all =
        opener.Open(keyed, train.size() + valid.size(), trains ? files.train : files.valid);
    if (!trains) {
      valid.emplace_back(keyed.source->name, Sources{all});
      continue;
    }
    train.push_back(apart ? ClickRows::HoldOut(all, apart->fraction).train : all);
    if (last) tails.push_back(ClickRows::HoldOut(all, last->fraction).valid);
  }
  if (last) valid.emplace_back("", std::move(tails));
  const BatchSpec spec = model.Inputs(recipe.data.seq_len);
  const DealOptions deal{recipe.train.global_batch_size, recipe.train.micro_batch_size, data_ranks};
  RowLoaders loaders;
  loaders.train = std::make_unique<TrainLoader>(
      std::make_shared<const ClickRows>(spec, std::move(train), recipe.data.shuffle, seed), deal,
      seed);
  if (recipe.eval.every == 0) return loaders;
  for (auto& [name, sources] : valid) {
    const std::string floor = FloorWords(name, sources);
    if (remark && !floor.empty()) remark(floor);
    auto rows = std::make_shared<const ClickRows>(spec, std::move(sources), /*shuffle=*/false,
                                                  /*seed=*/0);
    loaders.valid.push_back(
        {name, std::make_unique<EvalLoader>(std::move(rows), deal, recipe.eval.steps)});
  }
  return loaders;
}

}  // namespace fsdp
