#include "trainer/weights/run_tokenizer.h"

#include <filesystem>

#include "trainer/core/errors.h"
#include "trainer/data/data_files.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/recipe/data_source.h"

namespace fsdp {

std::optional<TokenManifest> ManifestOf(const SourceRecipe& source) {
  namespace fs = std::filesystem;
  try {
    for (const std::string& path : ExpandPaths(source.paths)) {
      std::error_code error;
      const fs::path parent = fs::path(path).parent_path();
      const std::string folder = fs::is_directory(path, error) ? path
                                 : parent.empty()              ? "."
                                                               : parent.string();
      if (auto manifest = ReadTokenManifest(folder)) return manifest;
    }
  } catch (const DataError&) {  // Nothing that would say it.
  }
  return std::nullopt;
}

RunTokenizer TokenizerOfRun(const Recipe& recipe) {
  RunTokenizer run;
  if (const std::string* name = TokenizerOf(recipe.data)) run.name = *name;
  for (const SourceRecipe& source : recipe.data.TrainSources()) {
    std::optional<TokenManifest> manifest;
    const DataSource& row = RowOf(source);
    if (row.tokenizer == DataSource::Tokenizer::kMadeBy) manifest = ManifestOf(source);
    if (run.name.empty() && manifest) {
      run.name = manifest->tokenizer;
      run.hash = manifest->tokenizer_hash;
    }
    if (run.chat_template.empty() && row.chat_template) {
      run.chat_template = row.chat_template(source);
    }
    if (!run.eot && source.eot) run.eot = static_cast<int32_t>(*source.eot);
    if (!run.eot && manifest) run.eot = manifest->eot;
  }
  return run;
}

std::shared_ptr<const Tokenizer> OpenRunTokenizer(const RunTokenizer& run) {
  std::shared_ptr<const Tokenizer> tokenizer = OpenTokenizer(run.name);
  if (run.hash && tokenizer->hash() != *run.hash) {
    throw DataError("tokenizer: " + run.name + ": is not the one that made the run's tokens");
  }
  return tokenizer;
}

}  // namespace fsdp
