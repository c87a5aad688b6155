// Samples that are drawn from the seed.
// Tests: tests/trainer/loop/images_test.cc
#include "trainer/data/synthetic/synthetic.h"

#include <algorithm>
#include <cmath>

#include "trainer/core/philox.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/data_source.h"

namespace fsdp::sources::synthetic {
namespace {

std::shared_ptr<const TokenSource> Tokens(const SourceToOpen& open) {
  SyntheticOptions options;
  options.vocab_size = open.vocab_size;
  options.seed = open.seed;
  return std::make_shared<SyntheticSource>(options);
}

// Whatever the model asks for. All sources are synthetic.
RowLoaders Rows(const RunToOpen& run, const Model& model) {
  using Part = SyntheticRows::Source;
  const BatchSpec inputs = model.Inputs(run.recipe.data.seq_len);
  return OpenRows<Part>(
      run, {.open =
                [&](const KeyedSource& keyed, size_t index, std::vector<DataFile>&) {
                  return Part{SeedOf(run.recipe, keyed, index, run.seed), keyed.source->weight};
                },
            .hold_out =
                [](const Part& all, double share) {
                  const auto kept = std::clamp<int64_t>(
                      std::llround(static_cast<double>(all.rows) * (1 - share)), 1, all.rows - 1);
                  return std::pair(Part{all.seed, all.weight, 0, kept},
                                   Part{all.seed, all.weight, kept, all.rows - kept});
                },
            .rows =
                [&](std::vector<Part> parts, const std::string* valid) {
                  return std::make_shared<const SyntheticRows>(inputs, std::move(parts),
                                                               valid ? 0 : run.seed);
                }});
}

}  // namespace

const DataSource& Source() {
  static const DataSource source{
      .name = "synthetic",
      .description =
          "samples of the form that the model reads, drawn from the seed, without files.",
      .files = DataSource::Files::kNone,
      .eot = DataSource::Eot::kAsked,
      .gives = "",
      .tokens = Tokens,
      .rows = Rows};
  return source;
}

}  // namespace fsdp::sources::synthetic
