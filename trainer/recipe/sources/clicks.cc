// Clicks of .csv files, or drawn ones.
// Tests: tests/trainer/loop/clicks_test.cc
#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "trainer/core/philox.h"
#include "trainer/core/units.h"
#include "trainer/data/clicks/click_rows.h"
#include "trainer/data/clicks/csv_clicks.h"
#include "trainer/data/clicks/synthetic_clicks.h"
#include "trainer/nn/model.h"
#include "trainer/nn/table.h"
#include "trainer/recipe/data_source.h"

namespace fsdp::sources::clicks {
namespace {

constexpr int64_t kMaxPlanted = int64_t{1} << 31;

struct Keys {
  std::string label = "label";  // As the next two, columns of .csv.
  std::vector<std::string> dense, categorical;
  std::optional<int64_t> planted;  // In place of paths: clicks that are drawn.
  bool operator==(const Keys&) const = default;
};

// Columns are named once, and not at all where clicks are drawn.
void Check(const SourceRecipe& source, const std::string& key, const RequireRule& require) {
  const Keys& keys = source.own.Of<Keys>();
  require(source.paths.empty() == keys.planted.has_value(),
          {key + ".planted", key + ".paths", key + ".source", key},
          "source `clicks` has paths, or clicks that are drawn (planted), and not both");
  if (keys.planted) {
    const bool names_any =
        !keys.dense.empty() || !keys.categorical.empty() || keys.label != Keys().label;
    require(!names_any, {key + ".planted", key},
            "planted clicks are drawn for the model's columns: no file has columns to name");
    return;
  }
  std::unordered_set<std::string> named = {keys.label};
  for (const auto& [name, columns] :
       {std::pair("dense", &keys.dense), {"categorical", &keys.categorical}}) {
    for (const std::string& column : *columns) {
      require(named.insert(column).second, {key + "." + name, key},
              "names column `" + column +
                  "`, which is named before: a column is the label, a number or ids, once");
    }
  }
}

void CheckModel(const SourceRecipe& source, const std::string& key, const Model& model,
                const BatchSpec& inputs, std::vector<ShapeConflict>& conflicts) {
  const Keys& keys = source.own.Of<Keys>();
  if (keys.planted) return;
  const auto compare = [&](const char* name, int64_t n, int64_t want, const char* of,
                           const std::string& field) {
    if (n == want) return;
    conflicts.push_back({{key + "." + name, key, field, "model.preset", "model.family"},
                         "names " + Counted(n, "column") + ", but the model has " +
                             std::to_string(want) + " " + of + " (" + field + ")"});
  };
  compare("dense", std::ssize(keys.dense), inputs.inputs[kDense].sample[0], "columns of numbers",
          "model.dense_columns");
  compare("categorical", std::ssize(keys.categorical), std::ssize(model.tables()), "tables of ids",
          "model.table_rows");
}

std::string Describe(const SourceRecipe& source) {
  const std::optional<int64_t>& planted = source.own.Of<Keys>().planted;
  return planted ? Grouped(*planted) + " planted clicks" : "";
}

// In words, the loss that no model gets below, by the first of each source's clicks. Empty: nobody
// knows it.
std::string FloorWords(const std::string& name, const std::vector<ClickSource>& sources) {
  constexpr size_t kLookedAt = size_t{1} << 16;
  double entropy = 0, normalized = 0, weight = 0;
  for (const ClickSource& source : sources) {
    if (!source.store->Probability(source.clicks[0])) return "";
    const std::span<const int64_t> clicks(source.clicks.data(),
                                          std::min(source.clicks.size(), kLookedAt));
    const ClickFloor floor = FloorOf(*source.store, clicks);
    entropy += source.weight * floor.entropy;
    normalized += source.weight * floor.normalized;
    weight += source.weight;
  }
  char text[160];
  std::snprintf(text, sizeof(text),
                ": the function that these clicks are drawn from has a loss of %.4f, a normalized "
                "entropy of %.4f: no model goes below, but for luck",
                entropy / weight, normalized / weight);
  return "data.valid" + (name.empty() ? "" : " `" + name + "`") + text;
}

RowLoaders Rows(const RunToOpen& run, const Model& model) {
  const BatchSpec inputs = model.Inputs(run.recipe.data.seq_len);
  ClickColumns columns;
  columns.dense = inputs.inputs[kDense].sample[0];
  for (const EmbeddingTable& table : model.tables()) {
    columns.bags.push_back(table.bag);
    columns.rows.push_back(table.rows);
  }
  const auto open = [&](const KeyedSource& keyed, size_t index, std::vector<DataFile>& files) {
    const SourceRecipe& source = *keyed.source;
    const Keys& keys = source.own.Of<Keys>();
    const auto where = [&](const char* name) {
      return WhereIs(run.recipe, keyed.key + "." + name);
    };
    std::shared_ptr<const ClickStore> store;
    if (keys.planted) {
      store = std::make_shared<const SyntheticClicks>(columns, *keys.planted,
                                                      HashBytes("data.planted", index));
    } else {
      store = OpenCsvClicks({source.paths, keys.label, keys.dense, keys.categorical, columns,
                             where("paths"), where("label"), where("dense"), where("categorical")});
    }
    for (DataFile& file : store->Files()) files.push_back(std::move(file));
    ClickSource all = ClickRows::Whole(std::move(store));
    all.weight = source.weight;
    return all;
  };
  return OpenRows<ClickSource>(
      run, {.open = open,
            .hold_out =
                [](const ClickSource& all, double share) {
                  ClickRows::Parts parts = ClickRows::HoldOut(all, share);
                  return std::pair(std::move(parts.train), std::move(parts.valid));
                },
            .rows =
                [&](std::vector<ClickSource> parts, const std::string* valid) {
                  const std::string floor = valid ? FloorWords(*valid, parts) : "";
                  if (run.progress.remark && !floor.empty()) run.progress.remark(floor);
                  return std::make_shared<const ClickRows>(inputs, std::move(parts),
                                                           !valid && run.recipe.data.shuffle,
                                                           valid ? 0 : run.seed);
                }});
}

}  // namespace

const DataSource& Source() {
  using recipe::Key, recipe::ListOf, recipe::Text;
  static const DataSource source{
      .name = "clicks",
      .description =
          ".csv with a label, columns of numbers and columns of ids, or clicks that are drawn, for "
          "a model that predicts them.",
      .keys =
          {Own(Key("label", &Keys::label, Text(),
                   "clicks: the .csv column with the label, 0 or 1.")),
           Own(Key("dense", &Keys::dense, ListOf(Text()),
                   "clicks: the columns of numbers, in the model's order. An empty cell is 0.")),
           Own(Key(
               "categorical", &Keys::categorical, ListOf(Text()),
               "clicks: the columns of ids, one per table of the model. An id is any 64-bit "
               "number, decimal or with 0x, for example a hash; its row is the remainder by the "
               "table's number of rows. A negative id counts as the unsigned number of its bits. "
               "Several ids in a cell are separated by a vertical bar; "
               "an empty cell has none.")),
           Own(Key("planted", &Keys::planted, recipe::Nullable(recipe::Integer(1, kMaxPlanted)),
                   "clicks: draw this many clicks instead of reading paths. Their labels follow a "
                   "known function of first, second and third order in the columns, so an "
                   "evaluation can say how low the loss can get."))},
      .files = DataSource::Files::kChecked,
      .gives = "clicks",
      .check = Check,
      .fits = IsOfClicks,
      .check_model = CheckModel,
      .describe = Describe,
      .rows = Rows,
      .checks_by_opening = true};
  return source;
}

}  // namespace fsdp::sources::clicks
