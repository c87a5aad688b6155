#include "trainer/loop/pair_data.h"

#include <utility>
#include <variant>

#include "trainer/data/pairs/span_corruption.h"

namespace fsdp {
namespace {

// Sources for an encoder and a decoder: all spans, or all pairs.
struct PairSources {
  std::vector<SpanRows::Source> spans;
  std::vector<PairRows::Source> pairs;
  std::vector<int32_t> sentinels = {};

  std::shared_ptr<const RowSource> Rows(const DataRecipe& data, const PairLengths& lengths,
                                        bool shuffle, uint64_t seed) && {
    if (spans.empty()) {
      return std::make_shared<PairRows>(std::move(pairs), lengths, shuffle, seed);
    }
    return std::make_shared<SpanRows>(std::move(spans), lengths,
                                      *LongestText(data.spans(), data.seq_len),
                                      std::move(sentinels), shuffle, seed);
  }
};

}  // namespace

RowLoaders OpenPairs(const Recipe& recipe, const PairLengths& lengths, const PairOpeners& open,
                     int data_ranks, uint64_t seed, const ValidRecipe& held_out, DataFiles& files) {
  const auto* apart = std::get_if<HeldOut>(&held_out);          // Never trained on.
  const auto* last = std::get_if<HeldOut>(&recipe.data.valid);  // Evaluated.
  const bool spans = recipe.data.objective == DataRecipe::Objective::kSpanCorruption;
  PairSources train, tails;
  std::vector<std::pair<std::string, PairSources>> valid;
  for (const KeyedSource& keyed : KeyedSources(recipe.data)) {
    const SourceRecipe& source = *keyed.source;
    const bool trains = keyed.list == "data.train";
    std::vector<DataFile>& read = trains ? files.train : files.valid;
    PairSources& to = trains ? train : valid.emplace_back(source.name, PairSources()).second;
    if (spans) {
      const auto tokens = open.text(source, keyed.key, read);
      const int64_t count = LongestText(recipe.data.spans(), recipe.data.seq_len)->spans;
      to.sentinels = tails.sentinels = open.sentinels(source, keyed.key, count);
      const int32_t eot = *tokens->eot();
      to.spans.push_back({trains && apart ? SplitSource(tokens, apart->fraction).train : tokens,
                          source.weight, eot});
      if (trains && last) {
        tails.spans.push_back({SplitSource(tokens, last->fraction).valid, source.weight, eot});
      }
      continue;
    }
    const PairRows::Fitted all = open.pairs(source, keyed.key, read);
    to.pairs.push_back(
        {trains && apart ? PairRows::HoldOut(all, apart->fraction).train : all, source.weight});
    if (trains && last) {
      tails.pairs.push_back({PairRows::HoldOut(all, last->fraction).valid, source.weight});
    }
  }
  if (last) valid.emplace_back("", std::move(tails));
  const DealOptions deal{recipe.train.global_batch_size, recipe.train.micro_batch_size, data_ranks};
  RowLoaders loaders;
  loaders.train = std::make_unique<TrainLoader>(
      std::move(train).Rows(recipe.data, lengths, recipe.data.shuffle, seed), deal, seed);
  if (recipe.eval.every == 0) return loaders;
  for (auto& [name, sources] : valid) {
    auto rows = std::move(sources).Rows(recipe.data, lengths, /*shuffle=*/false, /*seed=*/0);
    loaders.valid.push_back(
        {name, std::make_unique<EvalLoader>(std::move(rows), deal, recipe.eval.steps)});
  }
  return loaders;
}

}  // namespace fsdp
