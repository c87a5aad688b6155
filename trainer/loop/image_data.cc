#include "trainer/loop/image_data.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/utf8.h"
#include "trainer/data/images/image_rows.h"
#include "trainer/data/images/image_store.h"

namespace fsdp {
namespace {

ImageSource Open(const Recipe& recipe, const KeyedSource& keyed, const BatchSpec& spec,
                 std::vector<DataFile>& files) {
  const SourceRecipe& source = *keyed.source;
  if (source.source != SourceRecipe::Source::kImages) {
    throw ConfigError(recipe.Mistake(
        std::vector<std::string>{keyed.key + ".source", keyed.key},
        "`" + std::string(Name(source.source)) +
            "` stands beside `images`: the sources of a run are images, or none of them is"));
  }
  const auto where = [&](const char* name) {
    std::string place = recipe.Mistake(keyed.key + "." + name, "");
    place.resize(place.size() - 2);
    return place;
  };
  const std::shared_ptr<const ImageStore> store =
      OpenImages({source.paths, source.labels, where("paths"), where("labels")});
  for (DataFile& file : store->Files()) files.push_back(std::move(file));
  ImageSource all = ImageRows::Whole(store, spec);
  all.weight = source.weight;
  all.changes = source.changes();
  return all;
}

// A class that has another number elsewhere would be evaluated as another one.
void RequireSameClasses(const ImageSource& first, const ImageSource& other) {
  const std::vector<std::string>&a = first.store->classes(), &b = other.store->classes();
  if (a.empty() || b.empty() || a == b) return;
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  const auto name = [i](const std::vector<std::string>& names) {
    return i < names.size() ? "`" + PrintableName(names[i]) + "`" : std::string("nothing");
  };
  throw DataError("data: " + other.store->Describe() + ": its folder number " + std::to_string(i) +
                  " is " + name(b) + ", and that of " + first.store->Describe() + " is " + name(a) +
                  ": all sources have the same classes");
}

}  // namespace

bool ReadsImages(const DataRecipe& data) {
  return std::ranges::any_of(KeyedSources(data), [](const KeyedSource& keyed) {
    return keyed.source->source == SourceRecipe::Source::kImages;
  });
}

RowLoaders OpenImageData(const Recipe& recipe, const BatchSpec& spec, int data_ranks, uint64_t seed,
                         const ValidRecipe& held_out, DataFiles& files) {
  const auto* apart = std::get_if<HeldOut>(&held_out);          // Never trained on.
  const auto* last = std::get_if<HeldOut>(&recipe.data.valid);  // Evaluated.
  using Sources = std::vector<ImageSource>;
  Sources train, tails;
  std::vector<std::pair<std::string, Sources>> valid;
  for (const KeyedSource& keyed : KeyedSources(recipe.data)) {
    const bool trains = keyed.list == "data.train";
    const ImageSource all = Open(recipe, keyed, spec, trains ? files.train : files.valid);
    if (!train.empty()) RequireSameClasses(train[0], all);
    if (!trains) {
      valid.emplace_back(keyed.source->name, Sources{all});
      continue;
    }
    train.push_back(apart ? ImageRows::HoldOut(all, apart->fraction).train : all);
    if (last) tails.push_back(ImageRows::HoldOut(all, last->fraction).valid);
  }
  if (last) valid.emplace_back("", std::move(tails));
  const DealOptions deal{recipe.train.global_batch_size, recipe.train.micro_batch_size, data_ranks};
  RowLoaders loaders;
  loaders.train = std::make_unique<TrainLoader>(
      std::make_shared<const ImageRows>(spec, std::move(train), recipe.data.shuffle,
                                        /*draws=*/true, seed),
      deal, seed);
  if (recipe.eval.every == 0) return loaders;
  for (auto& [name, sources] : valid) {
    auto rows = std::make_shared<const ImageRows>(spec, std::move(sources), /*shuffle=*/false,
                                                  /*draws=*/false, /*seed=*/0);
    loaders.valid.push_back(
        {name, std::make_unique<EvalLoader>(std::move(rows), deal, recipe.eval.steps)});
  }
  return loaders;
}

}  // namespace fsdp
