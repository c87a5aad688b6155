// Files of token ids.
// Tests: tests/e2e/data_test.cc
#include "trainer/data/tokens/token_file.h"
#include "trainer/recipe/data_source.h"

namespace fsdp::sources::tokens {
namespace {

struct Keys {
  std::optional<TokenDType> dtype;  // Raw files', which have no header.
  bool operator==(const Keys&) const = default;
};

std::shared_ptr<const TokenSource> Tokens(const SourceToOpen& open) {
  ExpandPaths(open.source.paths, open.Where("paths"));
  auto tokens =
      std::make_shared<TokenFileSource>(open.source.paths, open.source.own.Of<Keys>().dtype);
  if (!tokens->eot() && open.tokenizer && open.tokenizer->eot()) {
    return WithEot(std::move(tokens), *open.tokenizer->eot());
  }
  return tokens;
}

}  // namespace

const DataSource& Source() {
  static const DataSource source{
      .name = "tokens",
      .description = "files of token ids (llm.c .bin, .npy or raw).",
      .keys = {Own(recipe::Key(
                   "dtype", &Keys::dtype,
                   recipe::Nullable(recipe::OneOf<TokenDType>({"uint16", "uint32"}, {})),
                   "tokens: the type of ids in raw files. null: every file has a header, "
                   "llm.c's or NumPy's.")),
               Shared(recipe::Key(
                   "eot", &SourceRecipe::eot, recipe::Nullable(recipe::Integer(0)),
                   "The token that ends every document. null: the tokenizer's own, or the "
                   "one in a tokens.json beside the files."))},
      .tokenizer = DataSource::Tokenizer::kMadeBy,
      .eot = DataSource::Eot::kAsked,
      .objective = DataRecipe::Objective::kSpanCorruption,
      .tokens = Tokens};
  return source;
}

}  // namespace fsdp::sources::tokens
