// Images with labels.
// Tests: tests/trainer/loop/images_test.cc
#include <set>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/images/image_rows.h"
#include "trainer/data/images/image_store.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/data_source.h"
#include "trainer/recipe/sections.h"

namespace fsdp::sources::images {
namespace {

constexpr int64_t kMaxImageSide = int64_t{1} << 14;

struct Keys {
  std::vector<std::string> labels;  // ExpandPaths().
  std::optional<int64_t> size;      // ImageChanges::size; empty: the model's.
  Crop crop = Crop::kNone;
  bool flip = false;
  std::vector<double> mean = ImageChanges().mean, std = ImageChanges().std;
  bool operator==(const Keys&) const = default;
};

void Check(const SourceRecipe& source, const std::string& key, const RequireRule& require) {
  const Keys& keys = source.own.Of<Keys>();
  const bool cuts = keys.crop == Crop::kCenter || keys.crop == Crop::kRandom;
  require(!keys.size || cuts, {key + ".size", key + ".crop"},
          std::string("belongs to crop `center` and `random`; crop `") +
              (keys.crop == Crop::kNone ? "none" : "random_resized") +
              "` resizes to model.image_size at once");
}

void CheckModel(const SourceRecipe& source, const std::string& key, const Model&,
                const BatchSpec& inputs, std::vector<ShapeConflict>& conflicts) {
  const Keys& keys = source.own.Of<Keys>();
  const Shape& pixels = inputs.inputs[kPixels].sample;
  if (keys.size && *keys.size < pixels[0]) {
    conflicts.push_back({{key + ".size", "model.image_size", "model.preset"},
                         "a square of model.image_size, " + std::to_string(pixels[0]) +
                             ", is cut out of images whose shorter side has " +
                             std::to_string(*keys.size) + " pixels"});
  }
  for (const auto& [name, values] : {std::pair("mean", &keys.mean), {"std", &keys.std}}) {
    const auto n = std::ssize(*values);
    if (n == 1 || n == pixels[2]) continue;
    conflicts.push_back({{key + "." + name, key, "model.num_channels"},
                         "has " + Counted(n, "number") + ", want one, or one for each of " +
                             Counted(pixels[2], "channel")});
  }
}

int64_t Classes(const SourceRecipe& source) {
  return std::ssize(OpenImages({source.paths, source.own.Of<Keys>().labels})->classes());
}

// A class that has another number elsewhere would be evaluated as another one.
void RequireSameClasses(const ImageStore& first, const ImageStore& other) {
  const std::vector<std::string>&a = first.classes(), &b = other.classes();
  if (a.empty() || b.empty() || a == b) return;
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  const auto name = [i](const std::vector<std::string>& names) {
    return i < names.size() ? "`" + PrintableName(names[i]) + "`" : std::string("nothing");
  };
  throw DataError("data: " + other.Describe() + ": its folder number " + std::to_string(i) +
                  " is " + name(b) + ", and that of " + first.Describe() + " is " + name(a) +
                  ": all sources have the same classes");
}

ImageChanges Changes(const SourceRecipe& source) {
  const Keys& keys = source.own.Of<Keys>();
  return {keys.size.value_or(0), keys.crop, keys.flip, keys.mean, keys.std};
}

// "img/train: 180 images in 3 classes".
std::string HowMany(const ImageStore& store, const BatchSpec& inputs) {
  std::set<int32_t> labels;
  for (int64_t i = 0; i < store.size(); ++i) labels.insert(store.Label(i));
  const int64_t known = inputs.inputs[kLabel].values, none = known - std::ssize(labels);
  std::string line = "data: " + store.Describe() + ": " + Counted(store.size(), "image") + " in " +
                     std::to_string(labels.size()) + (labels.size() == 1 ? " class" : " classes");
  if (none > 0) {
    line += "; model.num_labels is " + std::to_string(known) + ", so " + std::to_string(none) +
            (none == 1 ? " of its classes has" : " of its classes have") + " no image here";
  }
  return line;
}

// A model of more classes than the folders has to be asked for.
void RequireNoMoreLabels(const Recipe& recipe, int64_t labels, const ImageStore& images) {
  const std::string key = "model.num_labels";
  const std::vector<std::string>& classes = images.classes();
  if (classes.empty() || std::ssize(classes) >= labels || recipe.places.contains(key)) return;
  throw ConfigError(recipe.Mistake(
      std::vector<std::string>{key, "model.preset", "model.init_from", "model.family"},
      "the model has " + Grouped(labels) + " classes, and " + images.Describe() + " has " +
          std::to_string(classes.size()) +
          ": set model.num_labels: " + std::to_string(classes.size()) + ", or " +
          std::to_string(labels) + " if the others have no image on purpose"));
}

RowLoaders Rows(const RunToOpen& run, const Model& model) {
  const BatchSpec inputs = model.Inputs(run.recipe.data.seq_len);
  std::shared_ptr<const ImageStore> first;
  const auto open = [&](const KeyedSource& keyed, size_t, std::vector<DataFile>& files) {
    const SourceRecipe& source = *keyed.source;
    const ImageChanges changes = Changes(source);
    const Shape& pixels = inputs.inputs[kPixels].sample;
    const std::shared_ptr<const ImageStore> store = OpenImages(
        {.paths = source.paths,
         .labels = source.own.Of<Keys>().labels,
         .where = WhereIs(run.recipe, keyed.key + ".paths"),
         .where_labels = WhereIs(run.recipe, keyed.key + ".labels"),
         .channels = pixels[2],
         .why_not =
             [&](const ImagePixels& size) { return WhyNotChanged(size, changes, pixels[0]); },
         .say = run.progress.say});
    for (DataFile& file : store->Files()) files.push_back(std::move(file));
    ImageSource all = ImageRows::Whole(store, inputs);
    all.weight = source.weight;
    all.changes = changes;
    run.progress.Remark(run.recipe, keyed.key, HowMany(*store, inputs));
    if (first) RequireSameClasses(*first, *store);
    if (!first) {
      RequireNoMoreLabels(run.recipe, inputs.inputs[kLabel].values, *store);
      first = store;
    }
    return all;
  };
  RowLoaders loaders = OpenRows<ImageSource>(
      run, {.open = open,
            .hold_out =
                [](const ImageSource& all, double share) {
                  ImageRows::Parts parts = ImageRows::HoldOut(all, share);
                  return std::pair(std::move(parts.train), std::move(parts.valid));
                },
            .rows =
                [&](std::vector<ImageSource> parts, const std::string* valid) {
                  const bool trains = valid == nullptr;
                  return std::make_shared<const ImageRows>(inputs, std::move(parts),
                                                           trains && run.recipe.data.shuffle,
                                                           /*draws=*/trains, trains ? run.seed : 0);
                }});
  loaders.classes = first->classes();
  return loaders;
}

std::vector<SourceKey> AllKeys() {
  using recipe::Key, recipe::ListOf, recipe::Number;
  return {
      Own(Key("labels", &Keys::labels, recipe::Paths(),
              "images: one file of labels for each IDX file of images, in the order of the "
              "paths.")),
      Own(Key("size", &Keys::size, recipe::Nullable(recipe::Integer(1, kMaxImageSide)),
              "images: pixels that an image's shorter side is resized to before crop `center` or "
              "`random` cuts a square of model.image_size. null: model.image_size.")),
      Own(Key("crop", &Keys::crop,
              recipe::OneOf<Crop>({"none", "center", "random", "random_resized"}, {}),
              "images: the part of an image that becomes the model's square. none: the whole "
              "image, resized. center: a square from the middle. random: a square from a random "
              "place. random_resized: a random box of 8 to 100 % of the image's area, with sides "
              "from 3 : 4 to 4 : 3, resized. Evaluations take the middle.")),
      Own(Key("flip", &Keys::flip, recipe::Boolean(),
              "images: mirror half of the training images, drawn at random, left to right.")),
      Own(Key("mean", &Keys::mean, ListOf(Number({.at_least = -1e6, .at_most = 1e6})),
              "images: subtracted from the channels, which are bytes / 255. One number per "
              "channel, or one for all.")),
      Own(Key("std", &Keys::std, ListOf(Number({.at_least = 1e-6, .at_most = 1e6})),
              "images: the difference is divided by this. One number per channel, or one for "
              "all."))};
}

}  // namespace

const DataSource& Source() {
  static const DataSource source{
      .name = "images",
      .description = "images with labels, for a model that classifies them.",
      .keys = AllKeys(),
      .gives = "images",
      .check = Check,
      .fits = IsOfImages,
      .check_model = CheckModel,
      .classes = Classes,
      .image_changes = Changes,
      .rows = Rows,
      .checks_by_opening = true};
  return source;
}

}  // namespace fsdp::sources::images
