#include "trainer/loop/drawn_data.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/core/philox.h"
#include "trainer/data/synthetic/synthetic_rows.h"

namespace fsdp {
namespace {

// Samples of an epoch: those that are trained on, and the others.
struct EpochParts {
  int64_t train = SyntheticRows::kEpoch;

  explicit EpochParts(const HeldOut* apart) {
    if (apart == nullptr) return;
    const auto epoch = static_cast<double>(SyntheticRows::kEpoch);
    train = std::clamp<int64_t>(std::llround(epoch * (1 - apart->fraction)), 1,
                                SyntheticRows::kEpoch - 1);
  }
};

}  // namespace

RowLoaders OpenDrawn(const Recipe& recipe, const BatchSpec& spec, int data_ranks, uint64_t seed,
                     const ValidRecipe& held_out) {
  using Source = SyntheticRows::Source;
  const DealOptions deal{recipe.train.global_batch_size, recipe.train.micro_batch_size, data_ranks};
  const EpochParts trained(std::get_if<HeldOut>(&held_out));
  const auto* last = std::get_if<HeldOut>(&recipe.data.valid);
  const EpochParts evaluated(last);
  std::vector<Source> train, tails;
  std::vector<std::pair<std::string, std::vector<Source>>> valid;
  for (const KeyedSource& keyed : KeyedSources(recipe.data)) {
    if (keyed.list == "data.valid") {
      valid.push_back({keyed.source->name, {{.seed = seed + 1 + valid.size()}}});
      continue;
    }
    const uint64_t own = train.empty() ? seed : seed ^ HashBytes("data.train.source", train.size());
    const double weight = keyed.source->weight;
    train.push_back({own, weight, 0, trained.train});
    tails.push_back({own, weight, evaluated.train, SyntheticRows::kEpoch - evaluated.train});
  }
  if (last != nullptr) valid.emplace_back("", std::move(tails));
  RowLoaders loaders;
  loaders.train = std::make_unique<TrainLoader>(
      std::make_shared<const SyntheticRows>(spec, std::move(train), seed), deal, seed);
  if (recipe.eval.every == 0) return loaders;
  for (auto& [name, sources] : valid) {
    auto rows = std::make_shared<const SyntheticRows>(spec, std::move(sources), /*seed=*/0);
    loaders.valid.push_back(
        {name, std::make_unique<EvalLoader>(std::move(rows), deal, recipe.eval.steps)});
  }
  return loaders;
}

}  // namespace fsdp
