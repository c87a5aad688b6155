#include "trainer/recipe/data_source.h"

#include <variant>

#include "trainer/core/cache_directory.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/recipe/sources/list.h"

namespace fsdp {

#define FSDP_TRAIN_DECLARE_SOURCE(name) \
  namespace name {                      \
  const DataSource& Source();           \
  }
namespace sources {
FSDP_TRAIN_DATA_SOURCES(FSDP_TRAIN_DECLARE_SOURCE)
}

std::span<const DataSource* const> DataSources() {
#define FSDP_TRAIN_SOURCE_ROW(name) &sources::name::Source(),
  static const DataSource* const all[] = {FSDP_TRAIN_DATA_SOURCES(FSDP_TRAIN_SOURCE_ROW)};
  return all;
}

const DataSource& RowOf(const SourceRecipe& source) {
  for (const DataSource* row : DataSources()) {
    if (row->name == source.source) return *row;
  }
  FSDP_CHECK(false) << "no source " << source.source;
  return *DataSources()[0];
}

const DataSource& MainRowOf(const DataRecipe& data) {
  const std::vector<KeyedSource> all = KeyedSources(data);
  for (const KeyedSource& keyed : all) {
    if (const DataSource& row = RowOf(*keyed.source); !row.gives.empty()) return row;
  }
  return RowOf(*all.at(0).source);
}

void OpenProgress::Remark(const Recipe& recipe, const std::string& key,
                          const std::string& line) const {
  const bool is_read = trains || !key.starts_with("data.train") ||
                       std::holds_alternative<HeldOut>(recipe.data.valid);
  if (remark && is_read) remark(line);
}

uint64_t SeedOf(const Recipe& recipe, const KeyedSource& keyed, size_t index, uint64_t seed) {
  if (keyed.list == "data.valid") return seed + 1 + index - recipe.data.TrainSources().size();
  return index == 0 ? seed : seed ^ HashBytes("data.train.source", index);
}

std::string WhereIs(const Recipe& recipe, const std::string& key) {
  std::string where = recipe.Mistake(key, "");
  where.resize(where.size() - 2);
  return where;
}

void RequireEot(const Recipe& recipe, const std::string& key, bool has_one,
                const std::string& wants, const std::string& what) {
  if (wants.empty() || has_one) return;
  throw ConfigError(recipe.Mistake(key + ".eot", wants + " needs an end-of-text token, and " +
                                                     what + " names none: give " + key + ".eot"));
}

std::string SourceToOpen::TokenCache() const {
  return recipe.data.cache.value_or(CacheDirectory("tokens"));
}

const std::string* TokenizerOf(const SourceRecipe& source) {
  using Names = DataSource::Tokenizer;
  const Names names = RowOf(source).tokenizer;
  const bool known =
      names == Names::kNeeded || (names == Names::kMadeBy && source.tokenizer != "bytes");
  return known ? &source.tokenizer : nullptr;
}

const std::string* TokenizerOf(const DataRecipe& data) {
  for (const SourceRecipe& source : data.TrainSources()) {
    if (const std::string* tokenizer = TokenizerOf(source)) return tokenizer;
  }
  return nullptr;
}

bool OwnKeys::operator==(const OwnKeys& other) const {
  const auto all_equal = [&](const OwnKeys& of) {
    for (const auto& [type, given] : of.given_) {
      if (!given.equal(*this, other)) return false;
    }
    return true;
  };
  return all_equal(*this) && all_equal(other);
}

}  // namespace fsdp
