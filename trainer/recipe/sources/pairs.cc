// Prompts and their completions.
// Tests: tests/trainer/loop/pairs_test.cc
#include "trainer/data/samples/line_samples.h"
#include "trainer/recipe/data_source.h"

namespace fsdp::sources::pairs {
namespace {

using Objective = DataRecipe::Objective;

struct Keys {
  std::string prompt = "prompt", completion = "completion";  // Fields of JSON objects.
  bool operator==(const Keys&) const = default;
};

void Fill(SourceRecipe& source, Objective objective,
          const std::function<bool(const char* key)>& given) {
  if (objective != Objective::kSeq2Seq) return;
  Keys& keys = source.own.Change<Keys>();
  if (!given("prompt")) keys.prompt = "input";
  if (!given("completion")) keys.completion = "target";
}

DataSource::Lines Lines(const SourceToOpen& open) {
  const Keys& keys = open.source.own.Of<Keys>();
  const std::optional<int32_t> eot =
      open.source.eot ? static_cast<int32_t>(*open.source.eot) : open.tokenizer->eot();
  RequireEot(open.recipe, open.key, eot.has_value(), "source `pairs`", open.source.tokenizer);
  const bool apart = open.recipe.data.objective == Objective::kSeq2Seq;
  const bool named = keys != (apart ? Keys{"input", "target"} : Keys{});
  const PairFields fields{keys.prompt, keys.completion, /*or_alpaca=*/!named};
  return {apart ? PairsApart(open.tokenizer, fields, *eot) : Pairs(open.tokenizer, fields, *eot)};
}

}  // namespace

const DataSource& Source() {
  static const DataSource source{
      .name = "pairs",
      .description =
          "JSON whose objects have two text fields, a prompt and its completion, or Alpaca's "
          "`instruction`, `input` and `output`.",
      .keys = {Own(recipe::Key(
                   "prompt", &Keys::prompt, recipe::Text(),
                   "pairs: the field with the prompt. The loss does not count it. With both fields "
                   "left out, objects with `instruction` and `output` are read, too.")),
               Own(recipe::Key("completion", &Keys::completion, recipe::Text(),
                               "pairs: the field with the text to learn. It directly follows the "
                               "prompt and is ended by the end-of-text token."))},
      .tokenizer = DataSource::Tokenizer::kNeeded,
      .eot = DataSource::Eot::kNeeded,
      .noun = "pair",
      .is_whole = true,
      .objective = Objective::kSeq2Seq,
      .fill = Fill,
      .lines = Lines};
  return source;
}

}  // namespace fsdp::sources::pairs
