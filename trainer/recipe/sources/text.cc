// Text: files, in bytes or through a tokenizer.
// Tests: tests/e2e/data_test.cc
#include <algorithm>

#include "trainer/data/text/text_format.h"
#include "trainer/data/text/text_source.h"
#include "trainer/data/text/token_cache.h"
#include "trainer/recipe/data_source.h"

namespace fsdp::sources::text {
namespace {

// Bytes as they are: JSON is read first, also for `bytes`.
bool IsRaw(const SourceToOpen& open, const std::vector<std::string>& files) {
  return open.source.tokenizer == "bytes" &&
         std::all_of(files.begin(), files.end(),
                     [](const std::string& file) { return FormatOf(file) == TextFormat::kText; });
}

std::shared_ptr<const TokenSource> Bytes(const SourceToOpen& open) {
  auto source =
      std::make_shared<TextSource>(open.source.paths, open.recipe.data.allow_invalid_text);
  if (!source->too_invalid().empty()) {
    open.progress.Remark(open.recipe, open.key,
                         "data.allow_invalid_text: " + source->too_invalid() + ": kept as bytes");
  }
  return source;
}

std::shared_ptr<const TokenSource> Tokens(const SourceToOpen& open) {
  const SourceRecipe& source = open.source;
  if (IsRaw(open, ExpandTextPaths(source.paths, open.Where("paths")))) return Bytes(open);
  TokenizeOptions options;
  options.files = source.paths;
  options.column = source.column;
  options.allow_invalid_text = open.recipe.data.allow_invalid_text;
  if (source.eot) options.eot = static_cast<int32_t>(*source.eot);
  options.stop = open.progress.stop;
  options.silence_s = open.recipe.run.timeout_s;
  return OpenTextTokens(open.TokenCache(), open.tokenizer, source.tokenizer, std::move(options),
                        open.progress.say);
}

// Checks files and tokenizer.
bool Look(const SourceToOpen& open) {
  const std::vector<std::string> files = ExpandTextPaths(open.source.paths, open.Where("paths"));
  if (IsRaw(open, files)) return false;
  CheckFormats(files);
  RequireEot(open.recipe, open.key, open.source.eot || open.tokenizer->eot(),
             open.recipe.data.WantsEot(), files[0]);
  return true;
}

}  // namespace

const DataSource& Source() {
  static const DataSource source{
      .name = "text",
      .description = "files, tokenised when a run first reads them.",
      .keys = {Shared(recipe::Key("column", &SourceRecipe::column, recipe::Text(),
                                  "text: the field of JSON objects that holds a document."))},
      .tokenizer = DataSource::Tokenizer::kNeeded,
      .eot = DataSource::Eot::kAsked,
      .objective = DataRecipe::Objective::kSpanCorruption,
      .tokens = Tokens,
      .look = Look};
  return source;
}

}  // namespace fsdp::sources::text
