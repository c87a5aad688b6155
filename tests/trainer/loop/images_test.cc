// Images from a recipe to losses, and heads for other classes.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/testing/json.h"
#include "tests/trainer/data/pillow_images.h"
#include "tests/trainer/loop/train_ranks.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/setup.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using testing::FreshDirectory;
using testing::TrainRanks;
using testing::UnusedPath;
using Strings = std::vector<std::string>;

// Another one at every call.
std::string NewName(const std::string& kind) {
  static int count = 0;
  return kind + std::to_string(count++);
}

// 40 images of 9 x 8 grey pixels, which are bright at the top or at the bottom, with labels.
struct Files {
  std::string images, labels;

  explicit Files(int labels_from = 0) {
    const std::string directory = FreshDirectory(NewName("idx"));
    std::string pixels = {0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 9, 0, 0, 0, 8};
    std::string classes = {0, 0, 8, 1, 0, 0, 0, 40};
    const RandomStream random(1, "images");
    for (uint64_t i = 0; i < 40; ++i) {
      const int label = static_cast<int>(i % 2);
      for (uint64_t at = 0; at < 72; ++at) {
        const bool bright = (at < 36) == (label == 0);
        pixels += static_cast<char>(random.Below(72 * i + at, 100) + (bright ? 150 : 0));
      }
      classes += static_cast<char>(label + labels_from);
    }
    WriteAtomicFile(images = directory + "/images", pixels);
    WriteAtomicFile(labels = directory + "/labels", classes);
  }
};

Recipe Load(const std::string& source, const Strings& more = {}) {
  Strings all = {"run.dir=" + UnusedPath(NewName("run"))};
  all.insert(all.end(), more.begin(), more.end());
  return ParseRecipe(
      {{"r.yaml",
        "model: {family: vit, image_size: 6, patch_size: 3, num_channels: 1, num_labels: 2,\n"
        "        hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}\n"
        "data: {train: {source: images, " +
            source +
            "}, valid: {fraction: 0.2}}\n"
            "run: {threads: 1, timeout_s: 60}\n"
            "train: {steps: 12, micro_batch_size: 2, global_batch_size: 7}\n"
            "eval: {every: 12}\n"
            "optimizer: {lr: 1.0e-2}\n"
            "checkpoint: {every: 6, keep_last: 9}\n"
            "schedule: {name: constant}\n"}},
      all);
}

std::string Idx(const Files& files) {
  return "paths: [" + files.images + "], labels: [" + files.labels + "]";
}

std::string ErrorOf(const Recipe& recipe, ExitCode code) {
  try {
    OpenData(recipe, ShapeFor(recipe), 1, 1, recipe.data.valid);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "none";
}

std::vector<double> LossesOf(const Recipe& recipe) {
  std::vector<double> losses;
  std::istringstream lines(ReadWholeFile(*recipe.run.dir + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const testing::Json record = testing::Json::parse(line);
    if (record["kind"] == "step") losses.push_back(record["loss"]);
  }
  return losses;
}

// Its header and its end are whole, so that the fault is found when it is read.
std::string Damaged(std::string png) {
  png[png.size() / 2] ^= 1;
  return png;
}

TEST(Images, WorldsLearnTheSameAndAResumeGoesOn) {
  const std::string source =
      Idx(Files()) + ", size: 7, crop: random, flip: true, mean: [0.4], std: [0.3]";
  const Recipe one = Load(source, {"log.every=1"});
  std::string said;
  EXPECT_EQ(TrainRanks(1, one, &said), Strings{"0 "});
  EXPECT_NE(said.find("accuracy 1"), std::string::npos) << said;
  const std::vector<double> losses = LossesOf(one);
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_LT(losses.back(), 0.5 * losses[0]);
  const Recipe three = Load(source, {"log.every=1"});
  EXPECT_EQ(TrainRanks(3, three), Strings(3, "0 "));
  const std::vector<double> of_three = LossesOf(three);
  for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(of_three[s] / losses[s], 1, 1e-4) << s;

  std::filesystem::remove_all(*one.run.dir + "/checkpoints/step_12");
  WriteAtomicFile(*one.run.dir + "/checkpoints/latest", "step_6\n");
  EXPECT_EQ(TrainRanks(1, one), Strings{"0 "});
  EXPECT_EQ(LossesOf(one), losses);
}

// Crops and flips are drawn, decoding and resizing take their time: nothing shows in a bit, and a
// resume may have other threads. The first of wrong images ends the run.
TEST(Images, ThreadsChangeNoBit) {
  const std::string source =
      Idx(Files()) + ", size: 9, crop: random, flip: true, mean: [0.4], std: [0.3]";
  const Recipe one = Load(source, {"log.every=1"});
  EXPECT_EQ(TrainRanks(1, one), Strings{"0 "});
  const std::vector<double> losses = LossesOf(one);
  ASSERT_EQ(losses.size(), 12u);
  for (const char* threads : {"data.threads=2", "data.threads=5"}) {
    const Recipe more = Load(source, {"log.every=1", threads});
    EXPECT_EQ(TrainRanks(1, more), Strings{"0 "});
    EXPECT_EQ(LossesOf(more), losses) << threads;
  }
  std::filesystem::remove_all(*one.run.dir + "/checkpoints/step_12");
  WriteAtomicFile(*one.run.dir + "/checkpoints/latest", "step_6\n");
  Recipe resumed = one;
  resumed.data.threads = 3;
  EXPECT_EQ(TrainRanks(1, resumed), Strings{"0 "});
  EXPECT_EQ(LossesOf(one), losses);

  const std::string folder = FreshDirectory(NewName("broken"));
  const std::string png = testing::ImageFixture("grey.png");
  for (const std::string name : {"a/1", "a/2", "a/3", "b/4", "b/5", "b/6", "b/7", "b/8"}) {
    std::filesystem::create_directories(folder + "/" + name.substr(0, 1));
    WriteAtomicFile(folder + "/" + name + ".png", Damaged(png));
  }
  const auto ends = [&](const std::string& threads) {
    return TrainRanks(1, Load("paths: [" + folder + "]",
                              {"data.threads=" + threads, "train.micro_batch_size=4"}));
  };
  const Strings of_one = ends("1");
  EXPECT_EQ(of_one[0].find("4 "), 0u) << of_one[0];
  EXPECT_NE(of_one[0].find(".png: is damaged: "), std::string::npos) << of_one[0];
  EXPECT_EQ(ends("2"), of_one);
  EXPECT_EQ(ends("5"), of_one);
  for (const char* wrong : {"data.threads=0", "data.threads=1025", "data.threads=some"}) {
    EXPECT_THROW(Load(source, {wrong}), ConfigError) << wrong;
  }
}

// An image that does not decode is found when it is read. The steps before it are saved first, on
// any number of ranks, and a run with the image mended ends as if nothing had been.
TEST(Images, ARunThatItsDataEndsSavesFirst) {
  const std::string folder = FreshDirectory(NewName("damaged"));
  const std::string png = testing::ImageFixture("grey.png");
  for (int i = 0; i < 40; ++i) {
    const std::string of = folder + (i % 2 == 0 ? "/a" : "/b");
    std::filesystem::create_directories(of);
    WriteAtomicFile(of + "/" + std::to_string(100 + i) + ".png", png);
  }
  const std::string source = "paths: [" + folder + "]";
  // Images come in the order of their names, 7 in a step: image 26, b/113, belongs to the fourth.
  const Strings how = {"data.valid=null", "eval.every=0",        "data.shuffle=false",
                       "log.every=1",     "checkpoint.every=99", "data.allow_changed=true"};
  const Recipe whole = Load(source, how);
  EXPECT_EQ(TrainRanks(1, whole), Strings{"0 "});
  const std::string broken = folder + "/b/113.png";
  for (const int world : {1, 2, 3}) {
    WriteAtomicFile(broken, Damaged(png));
    const Recipe recipe = Load(source, how);
    Strings ends = TrainRanks(world, recipe);
    for (const std::string& end : ends) {
      EXPECT_EQ(end, "4 data: " + broken +
                         ": is damaged: IDAT: incorrect data check; the run can go on from " +
                         *recipe.run.dir +
                         "/checkpoints/step_3, with data.allow_changed: true unless all files are "
                         "as they were when it started");
    }
    EXPECT_EQ(LossesOf(recipe).size(), 3u);
    WriteAtomicFile(broken, png);
    EXPECT_EQ(TrainRanks(world, recipe), Strings(static_cast<size_t>(world), "0 "));
    const std::vector<double> losses = LossesOf(recipe), want = LossesOf(whole);
    ASSERT_EQ(losses.size(), want.size());
    for (size_t s = 0; s < want.size(); ++s) EXPECT_NEAR(losses[s], want[s], 1e-5) << s;
  }
  // In an evaluation, and where nothing may be saved.
  WriteAtomicFile(broken, Damaged(png));
  const std::string evaluated = FreshDirectory(NewName("fine"));
  for (const char* of : {"/a", "/b"}) {
    std::filesystem::create_directories(evaluated + of);
    WriteAtomicFile(evaluated + of + "/1.png", png);
  }
  const Recipe later =
      Load("paths: [" + evaluated + "]", {"data.valid={source: images, paths: [" + folder + "]}",
                                          "eval.every=2", "checkpoint.every=99"});
  const std::string end = TrainRanks(2, later)[0];
  EXPECT_NE(end.find("4 data: " + broken), std::string::npos) << end;
  EXPECT_NE(end.find("; the run can go on from " + *later.run.dir + "/checkpoints/step_2"),
            std::string::npos)
      << end;
  Strings silent = how;
  silent.push_back("checkpoint.every=null");
  EXPECT_EQ(TrainRanks(1, Load(source, silent))[0],
            "4 data: " + broken + ": is damaged: IDAT: incorrect data check");
}

TEST(Images, SayHowManyTheyAreAndInHowManyClasses) {
  const Recipe recipe = Load(Idx(Files()), {"model.num_labels=5", "train.steps=1"});
  std::string said;
  EXPECT_EQ(TrainRanks(1, recipe, &said), Strings{"0 "});
  EXPECT_NE(said.find(": 40 images in 2 classes; model.num_labels is 5, so 3 of its classes have "
                      "no image here"),
            std::string::npos)
      << said;
}

TEST(Images, AreJudgedWhereTheyAreRead) {
  const Files files, others(3);
  EXPECT_EQ(ErrorOf(Load(Idx(files)), ExitCode::kDone), "none");
  EXPECT_NE(ErrorOf(Load(Idx(others)), ExitCode::kData).find("its label is 3, but the model has 2"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Load("paths: [" + files.images + "]"), ExitCode::kData)
                .find("data.train.labels has 0 files"),
            std::string::npos);
}

TEST(Images, AreDrawnWhereNoFileIs) {
  const Recipe one = Load("labels: []", {"data.train={source: synthetic}", "log.every=1"});
  const Recipe two = Load("labels: []", {"data.train={source: synthetic}", "log.every=1"});
  EXPECT_EQ(TrainRanks(1, one), Strings{"0 "});
  EXPECT_EQ(TrainRanks(2, two), Strings(2, "0 "));
  const std::vector<double> losses = LossesOf(one), others = LossesOf(two);
  ASSERT_EQ(losses.size(), 12u);
  for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(others[s] / losses[s], 1, 1e-4) << s;
}

TEST(Images, SettingsAreJudgedWithTheRecipe) {
  const std::string paths = "paths: [x], labels: [y], ";
  const auto mistake = [&](const std::string& source, const Strings& more = {}) -> std::string {
    try {
      Load(source, more);
      return "none";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      return text.substr(text.find("data.train."));
    }
  };
  EXPECT_EQ(mistake(paths + "mean: [0.1, 0.2, 0.3]"),
            "data.train.mean: has 3 numbers, want one, or one for each of 1 channel");
  EXPECT_EQ(mistake(paths + "std: []"),
            "data.train.std: has 0 numbers, want one, or one for each of 1 channel");
  EXPECT_EQ(mistake(paths + "crop: center, size: 5"),
            "data.train.size: a square of model.image_size, 6, is cut out of images whose shorter "
            "side has 5 pixels");
  EXPECT_EQ(mistake(paths + "size: 8"),
            "data.train.size: belongs to crop `center` and `random`; crop `none` resizes to "
            "model.image_size at once");
  EXPECT_EQ(
      mistake("paths: [x], tokenizer: bytes", {"data.train={source: text, paths: [x]}"}),
      "data.train.source: `text` gives tokens, but a `vit` asks for `pixels`, `label`: `images` "
      "reads them, and `synthetic` draws them");
  EXPECT_NE(mistake(paths + "flip: true", {"data.train.source=synthetic"}).find("belongs to"),
            std::string::npos);
  // Also beside a shape of which no model can be built.
  EXPECT_EQ(mistake(paths + "mean: [0.1, 0.2]", {"model.patch_size=5"}),
            "data.train.mean: has 2 numbers, want one, or one for each of 1 channel\n"
            "--set model.patch_size=5: model.patch_size: 5 does not divide image_size 6");
}

TEST(Images, AModelWithoutLinearLayersTakesNoAdapters) {
  Recipe recipe = Load("labels: []", {"data.train={source: synthetic}",
                                      "model={family: regnet, preset: regnet-y-400mf}"});
  recipe.model.lora = LoraOptions();
  const std::vector<ShapeConflict> found = ModelMistakes(recipe);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].message,
            "`*` matches no weight of a linear layer in a block; the model has none");
}

TEST(Images, AHeadForOtherClassesIsDrawnAnew) {
  const Files files;
  const Recipe before = Load(Idx(files));
  EXPECT_EQ(TrainRanks(1, before), Strings{"0 "});
  const Strings from = {"model.init_from=" + *before.run.dir, "train.steps=1",
                        "checkpoint.every=1"};
  Strings more = from;
  more.insert(more.end(), {"model.num_labels=5", "model.family=null"});
  std::string said;
  const Recipe after = Load(Idx(files), more);
  EXPECT_EQ(TrainRanks(2, after, &said), Strings(2, "0 "));
  EXPECT_NE(said.find(": its head is for 2 classes: one for 5 is drawn anew"), std::string::npos)
      << said;
  EXPECT_EQ(TrainRanks(1, Load(Idx(files), from), &said), Strings{"0 "});
  EXPECT_EQ(said.find("drawn anew"), std::string::npos);
}

TEST(Images, AHeadThatIsDrawnIsTrained) {
  const Files files;
  const Recipe before = Load(Idx(files));
  EXPECT_EQ(TrainRanks(1, before), Strings{"0 "});
  const auto mistake = [&](const std::string& frozen, const std::string& labels) {
    const std::vector<ShapeConflict> found = ModelMistakes(Load(
        Idx(files), {"model.init_from=" + *before.run.dir, "model.family=null", frozen, labels}));
    return found.empty() ? "none" : found[0].keys[0] + ": " + found[0].message;
  };
  const std::string lora = "model.lora={rank: 2, targets: ['*']}",
                    groups = "optimizer.groups=[{match: 'classifier.*', frozen: true}]",
                    drawn =
                        "model.num_labels: is not that of model.init_from, so "
                        "`classifier.weight` is drawn anew, and ";
  EXPECT_EQ(mistake(lora, "model.num_labels=5"),
            drawn +
                "model.lora trains adapters alone: keep that of the weights, or name it in "
                "model.lora.full");
  const std::string full = "model.lora={rank: 2, targets: ['*'], full: [classifier]}";
  EXPECT_EQ(mistake(full, "model.num_labels=5"), "none");
  EXPECT_EQ(mistake(groups, "model.num_labels=5"),
            drawn +
                "optimizer.groups freezes it: keep that of the weights, or leave the head out "
                "of what is frozen");
  for (const std::string& frozen : {lora, groups}) {
    EXPECT_EQ(mistake(frozen, "model.num_labels=2"), "none");
  }
}

}  // namespace
}  // namespace fsdp
