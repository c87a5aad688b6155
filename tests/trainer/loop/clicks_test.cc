// Clicks from a recipe to losses.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::FreshDirectory;
using Strings = std::vector<std::string>;

Recipe Load(const std::string& source, const Strings& more = {}) {
  return ParseRecipe(
      {{"r.yaml",
        "model: {family: dhen, dense_columns: 2, table_rows: [5, 9], table_bags: [1, 2],\n"
        "        table_width: 4, dense_vectors: 1, num_vectors: 3, num_hidden_layers: 1,\n"
        "        num_attention_heads: 1, cross_rank: 2, intermediate_size: 5}\n"
        "data: {train: {source: clicks, " +
            source +
            "}, valid: {fraction: 0.2}}\n"
            "run: {threads: 1, timeout_s: 60}\n"
            "train: {steps: 4, micro_batch_size: 2, global_batch_size: 7}\n"
            "eval: {every: 4}\n"}},
      more);
}

std::string ErrorOf(const std::string& source, ExitCode code) {
  try {
    const Recipe recipe = Load(source);
    OpenData(recipe, ShapeFor(recipe), 1, 3, recipe.data.valid);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
}

std::string Columns(const std::string& path) {
  return "paths: [" + path + "], label: click, dense: [a, b], categorical: [page, tags]";
}

std::string Write(const std::string& directory, const std::string& lines) {
  const std::string path = directory + "/clicks.csv";
  WriteAtomicFile(path, "click,a,b,page,tags\n" + lines);
  return path;
}

TEST(Clicks, AreReadForTheModelsColumns) {
  const std::string directory = FreshDirectory("clicks");
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += std::to_string(i % 2) + "," + std::to_string(i) + ",0.5," + std::to_string(100 + i) +
             "," + std::to_string(i) + "|7\n";
  }
  const Recipe recipe = Load(Columns(Write(directory, lines)));
  const RunData data =
      OpenData(recipe, ShapeFor(recipe), /*data_ranks=*/1, /*seed=*/3, recipe.data.valid);
  EXPECT_EQ(data.train->rows().Rows(0), 16);
  ASSERT_EQ(data.valid.size(), 1u);
  EXPECT_EQ(data.files.train.size(), 1u);
}

// Files are opened, and nothing is drawn.
TEST(Clicks, AreCheckedBeforeARun) {
  const auto check = [](const std::string& source) {
    const Recipe recipe = Load(source);
    CheckData(recipe, ShapeFor(recipe));
  };
  EXPECT_THROW(check(Columns(FreshDirectory("none") + "/none.csv")), DataError);
  check("planted: 1000000000");
}

TEST(Clicks, SayHowLowAModelCanGet) {
  const Recipe recipe = Load("planted: 500");
  Strings remarks;
  OpenProgress progress;
  progress.remark = [&](const std::string& line) { remarks.push_back(line); };
  OpenData(recipe, ShapeFor(recipe), 1, 3, recipe.data.valid, progress);
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_EQ(remarks[0].find("data.valid: the function that these clicks are drawn from has a loss "
                            "of 0."),
            0u)
      << remarks[0];
}

TEST(Clicks, SayWhatDoesNotFit) {
  const std::string directory = FreshDirectory("wrong");
  const std::string path = Write(directory, "1,2,3,4,5\n1,2,3,4,x\n");
  EXPECT_EQ(ErrorOf("paths: [" + path + "], label: click, dense: [a], categorical: [page, tags]",
                    ExitCode::kUsage)
                .find("r.yaml:4:"),
            0u);
  EXPECT_NE(ErrorOf("paths: [" + path + "], label: click, dense: [a, b], categorical: [page]",
                    ExitCode::kUsage)
                .find("names 1 column, but the model has 2 tables of ids (model.table_rows)"),
            std::string::npos);
  EXPECT_EQ(
      ErrorOf(Columns(path), ExitCode::kData),
      "data: " + path + ":3: column `tags`: `x` is no id, which is a whole number of 64 bits");
  const std::string missing =
      ErrorOf("paths: [" + path + "], label: clicked, dense: [a, b], categorical: [page, tags]",
              ExitCode::kData);
  EXPECT_NE(missing.find("data.train.label: " + path + " has no column `clicked`"),
            std::string::npos)
      << missing;
}

}  // namespace
}  // namespace fsdp
