#include "trainer/data/images/image_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/images/image_pixels.h"
#include "trainer/data/loader.h"
#include "trainer/data/row_threads.h"

namespace fsdp::testing {
namespace {

using Floats = std::vector<float>;

// Image i: a square or not, of pixels that tell where they are and of which image; label i % 7.
class Numbered final : public ImageStore {
 public:
  Numbered(int64_t n, int64_t height, int64_t width, int64_t channels)
      : n_(n), height_(height), width_(width), channels_(channels) {}

  int64_t size() const override { return n_; }
  int32_t Label(int64_t i) const override { return static_cast<int32_t>(i % 7); }
  void Read(int64_t i, ImagePixels& pixels) const override {
    pixels = {height_, width_, channels_, {}};
    for (int64_t at = 0; at < height_ * width_ * channels_; ++at) {
      pixels.bytes.push_back(static_cast<uint8_t>(at * 7 + i * 31));
    }
  }
  std::string Where(int64_t i) const override { return "image " + std::to_string(i); }
  std::string Describe() const override { return "numbered"; }
  const std::vector<std::string>& classes() const override { return no_names_; }
  std::vector<DataFile> Files() const override { return {}; }

 private:
  const int64_t n_, height_, width_, channels_;
  const std::vector<std::string> no_names_;
};

BatchSpec SpecOf(int64_t side, int64_t channels, int64_t classes = 7) {
  using Role = BatchInput::Role;
  return {{{"pixels", DType::kFloat32, Shape{side, side, channels}},
           {"label", DType::kInt32, Shape{}, Role::kTarget, classes},
           {"weight", DType::kFloat32, Shape{}, Role::kWeight}}};
}

struct Row {
  Floats pixels;
  int32_t label = -1;
  float weight = -1;
  bool operator==(const Row&) const = default;
};

Row RowOf(const ImageRows& rows, const BatchSpec& spec, int64_t sample) {
  std::vector<std::byte> memory(static_cast<size_t>(BatchBytes(spec, 3)) + 64);
  void* begin = memory.data();
  size_t space = memory.size();
  std::align(64, static_cast<size_t>(BatchBytes(spec, 3)), begin, space);
  const Batch batch = CarveBatch(spec, 3, static_cast<std::byte*>(begin));
  rows.CheckViews(batch, 3);
  rows.Fill(sample, 1, batch);
  const int64_t n = spec.inputs[kPixels].sample.NumElements();
  const float* const pixels = batch.inputs[kPixels].As<float>() + n;
  return {{pixels, pixels + n},
          batch.inputs[kLabel].As<int32_t>()[1],
          batch.inputs[kImageWeight].As<float>()[1]};
}

ImageSource SourceOf(const BatchSpec& spec, std::shared_ptr<const ImageStore> store,
                     const ImageChanges& changes, double weight = 1) {
  ImageSource source = ImageRows::Whole(std::move(store), spec);
  source.changes = changes;
  source.weight = weight;
  return source;
}

ImagePixels ImageOf(const ImageStore& store, int64_t i) {
  ImagePixels pixels;
  store.Read(i, pixels);
  return pixels;
}

Floats Normalised(const ImagePixels& image, const ImageChanges& changes) {
  Floats values;
  for (size_t at = 0; at < image.bytes.size(); ++at) {
    const size_t c = at % static_cast<size_t>(image.channels);
    const double mean = changes.mean[std::min(c, changes.mean.size() - 1)];
    const double std = changes.std[std::min(c, changes.std.size() - 1)];
    values.push_back(static_cast<float>((image.bytes[at] / 255.0 - mean) / std));
  }
  return values;
}

ImagePixels Cut(const ImagePixels& image, const ImageBox& box) {
  ImagePixels part;
  ResizeImage(image, box, box.height, box.width, part);
  return part;
}

TEST(ImageRows, ARowIsAnImageAsNumbers) {
  const BatchSpec spec = SpecOf(4, 3);
  const auto store = std::make_shared<const Numbered>(5, 4, 4, 3);
  const ImageChanges changes{.mean = {0.1, 0.2, 0.3}, .std = {1, 2, 0.5}};
  const ImageRows rows(spec, {SourceOf(spec, store, changes)}, /*shuffle=*/false, /*draws=*/true,
                       7);
  EXPECT_EQ(rows.Rows(0), 5);
  EXPECT_EQ(rows.Targets(3, 8), 5);
  for (const int64_t sample : {0, 3, 8}) {
    const Row row = RowOf(rows, spec, sample);
    EXPECT_EQ(row.pixels, Normalised(ImageOf(*store, sample % 5), changes));
    EXPECT_EQ(row.label, sample % 5);
    EXPECT_EQ(row.weight, 1);
  }
  EXPECT_EQ(RowOf(rows, spec, kNoSample), (Row{Floats(48), 0, 0}));
}

TEST(ImageRows, EpochsHaveEveryImageOnce) {
  const BatchSpec spec = SpecOf(2, 1, 1000);
  const auto store = std::make_shared<const Numbered>(23, 2, 2, 1);
  const ImageRows rows(spec, {SourceOf(spec, store, {})}, /*shuffle=*/true, /*draws=*/true, 7);
  std::vector<std::vector<Floats>> epochs(2);
  for (int64_t sample = 0; sample < 46; ++sample) {
    epochs[static_cast<size_t>(sample / 23)].push_back(RowOf(rows, spec, sample).pixels);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (const auto& epoch : epochs) {
    EXPECT_EQ(std::set<Floats>(epoch.begin(), epoch.end()).size(), 23u);
  }
  const ImageRows other(spec, {SourceOf(spec, store, {})}, true, true, 8);
  EXPECT_NE(RowOf(other, spec, 0).pixels, epochs[0][0]);
}

TEST(ImageRows, SourcesAreMixed) {
  const BatchSpec spec = SpecOf(2, 1);
  const auto few = std::make_shared<const Numbered>(3, 2, 2, 1);
  const auto many = std::make_shared<const Numbered>(30, 2, 2, 1);
  const ImageChanges halves{.mean = {0}, .std = {2}};
  const ImageRows rows(spec, {SourceOf(spec, few, {}, 1), SourceOf(spec, many, halves, 3)},
                       /*shuffle=*/false, /*draws=*/false, 7);
  int64_t of_few = 0;
  for (int64_t sample = 0; sample < 80; ++sample) {
    const auto [source, number] = rows.mixture()(sample);
    const auto& store = source == 0 ? few : many;
    const int64_t i = number % store->size();
    EXPECT_EQ(RowOf(rows, spec, sample).pixels,
              Normalised(ImageOf(*store, i), source == 0 ? ImageChanges() : halves));
    of_few += source == 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(of_few), 20, 2);
}

// Every place and both sides come, by seed and sample alone, and none in an evaluation.
TEST(ImageRows, CropsAndFlipsAreDrawn) {
  const BatchSpec spec = SpecOf(3, 1);
  const auto store = std::make_shared<const Numbered>(1, 5, 5, 1);
  const ImagePixels image = ImageOf(*store, 0);
  std::vector<Floats> places;  // By place, then turned.
  for (int64_t top = 0; top < 3; ++top) {
    for (int64_t left = 0; left < 3; ++left) {
      ImagePixels part = Cut(image, {top, left, 3, 3});
      places.push_back(Normalised(part, {}));
      for (int64_t y = 0; y < 3; ++y) std::swap(part.bytes[y * 3], part.bytes[y * 3 + 2]);
      places.push_back(Normalised(part, {}));
    }
  }
  const ImageChanges changes{.size = 5, .crop = Crop::kRandom, .flip = true};
  const ImageRows drawn(spec, {SourceOf(spec, store, changes)}, true, /*draws=*/true, 7);
  std::vector<int> seen(places.size());
  constexpr int kSamples = 1800;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    const Row row = RowOf(drawn, spec, sample);
    const auto place = std::find(places.begin(), places.end(), row.pixels);
    ASSERT_NE(place, places.end()) << sample;
    ++seen[static_cast<size_t>(place - places.begin())];
  }
  for (const int n : seen) EXPECT_NEAR(n, kSamples / 18, 5 * std::sqrt(kSamples / 18.0));
  const ImageRows again(spec, {SourceOf(spec, store, changes)}, true, true, 7);
  const ImageRows other(spec, {SourceOf(spec, store, changes)}, true, true, 8);
  int same = 0;
  for (int64_t sample = 0; sample < 50; ++sample) {
    EXPECT_EQ(RowOf(again, spec, sample), RowOf(drawn, spec, sample));
    same += RowOf(other, spec, sample) == RowOf(drawn, spec, sample) ? 1 : 0;
  }
  EXPECT_LT(same, 20);
  const ImageRows evaluated(spec, {SourceOf(spec, store, changes)}, false, /*draws=*/false, 0);
  for (int64_t sample = 0; sample < 5; ++sample) {
    EXPECT_EQ(RowOf(evaluated, spec, sample).pixels, places[2 * 4]) << "the middle";
  }
}

// A line of pixels, which crops would resize to 16 times as many rows and columns, or to a billion.
TEST(ImageRows, ThinImagesAreNoReasonToTakeAllMemory) {
  const BatchSpec spec = SpecOf(16, 1);
  const auto refusal = [&](int64_t height, int64_t width, const ImageChanges& changes) {
    const auto store = std::make_shared<const Numbered>(2, height, width, 1);
    const ImageRows rows(spec, {SourceOf(spec, store, changes)}, false, /*draws=*/true, 7);
    try {
      const Row row = RowOf(rows, spec, 1);
      EXPECT_EQ(row.weight, 1);
      for (const float value : row.pixels) EXPECT_LE(std::abs(value), 1);
      return std::string();
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  for (const Crop crop : {Crop::kNone, Crop::kCenter, Crop::kRandom, Crop::kRandomResized}) {
    const bool resizes = crop == Crop::kCenter || crop == Crop::kRandom;
    for (const int64_t n : {1, 2, 3, 100, 4000}) {
      EXPECT_EQ(refusal(1, n, {.crop = crop}), "");
      EXPECT_EQ(refusal(n, 1, {.crop = crop}), "");
    }
    const std::string long_one = refusal(1, 1 << 21, {.crop = crop});
    EXPECT_EQ(long_one, !resizes ? ""
                                 : "data: image 1: has 1 x 2097152 pixels, of which a shorter side "
                                   "of 16 would make 16 x 33554432, too many: leave it out, or "
                                   "cut it");
  }
}

// Whatever the number of threads: the rows, and of several that are wrong the first.
TEST(ImageRows, ThreadsFillTheSameRows) {
  class SomeBroken final : public ImageStore {
   public:
    explicit SomeBroken(int64_t from) : from_(from) {}
    int64_t size() const override { return all_.size(); }
    int32_t Label(int64_t i) const override { return all_.Label(i); }
    void Read(int64_t i, ImagePixels& pixels) const override {
      if (i >= from_) throw DataError("data: " + Where(i) + ": is damaged");
      all_.Read(i, pixels);
    }
    std::string Where(int64_t i) const override { return all_.Where(i); }
    std::string Describe() const override { return all_.Describe(); }
    const std::vector<std::string>& classes() const override { return all_.classes(); }
    std::vector<DataFile> Files() const override { return {}; }

   private:
    const Numbered all_{40, 9, 7, 3};
    const int64_t from_;
  };
  const BatchSpec spec = SpecOf(5, 3);
  constexpr int64_t kRows = 13;
  const auto filled = [&](int threads, int64_t from) {
    const ImageChanges changes{.crop = Crop::kRandomResized, .flip = true};
    auto rows = std::make_shared<const ImageRows>(
        spec, std::vector{SourceOf(spec, std::make_shared<const SomeBroken>(from), changes)},
        /*shuffle=*/true, /*draws=*/true, 7);
    TrainLoader loader(std::move(rows), {26, kRows, 1}, /*seed=*/7);
    if (threads > 0) loader.FillWith(std::make_shared<RowThreads>(threads));
    std::vector<std::byte> memory(static_cast<size_t>(BatchBytes(spec, kRows)) + 64);
    void* begin = memory.data();
    size_t space = memory.size();
    std::align(64, static_cast<size_t>(BatchBytes(spec, kRows)), begin, space);
    std::string said;
    try {
      for (int64_t m = 0; m < 2; ++m) {
        const Batch batch = CarveBatch(spec, kRows, static_cast<std::byte*>(begin));
        loader.MicroBatch(/*step=*/2, m, /*data_rank=*/0, batch);
        for (const View& input : batch.inputs) {
          said.append(reinterpret_cast<const char*>(input.data), input.bytes());
        }
        said.append(reinterpret_cast<const char*>(batch.sample_keys.data),
                    batch.sample_keys.bytes());
      }
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return said;
  };
  for (const int64_t broken_from : {40, 20, 0}) {
    const std::string one = filled(0, broken_from);
    EXPECT_EQ(one.starts_with("data: image "), broken_from < 40) << one;
    for (const int threads : {1, 2, 5}) EXPECT_EQ(filled(threads, broken_from), one) << threads;
  }
}

TEST(ImageRows, ImagesAreResizedBeforeTheyAreCut) {
  const BatchSpec spec = SpecOf(8, 1);
  const auto store = std::make_shared<const Numbered>(1, 20, 31, 1);
  const ImagePixels image = ImageOf(*store, 0);
  const auto row = [&](const ImageChanges& changes) {
    const ImageRows rows(spec, {SourceOf(spec, store, changes)}, false, /*draws=*/false, 0);
    return RowOf(rows, spec, 0).pixels;
  };
  ImagePixels whole, shorter;
  ResizeImage(image, {0, 0, 20, 31}, 8, 8, whole);
  EXPECT_EQ(row({}), Normalised(whole, {}));
  ResizeImage(image, {0, 0, 20, 31}, 10, 15, shorter);
  EXPECT_EQ(row({.size = 10, .crop = Crop::kCenter}), Normalised(Cut(shorter, {1, 3, 8, 8}), {}));
  ResizeImage(image, {0, 0, 20, 31}, 8, 12, shorter);
  EXPECT_EQ(row({.crop = Crop::kCenter}), Normalised(Cut(shorter, {0, 2, 8, 8}), {}));
  ImagePixels middle;
  ResizeImage(image, {0, 5, 20, 20}, 8, 8, middle);
  EXPECT_EQ(row({.crop = Crop::kRandomResized}), Normalised(middle, {}));
}

// A box of 8 to 100 % and 3 : 4 to 4 : 3: of a white image with a border nothing is outside.
TEST(ImageRows, RandomBoxesDiffer) {
  const BatchSpec spec = SpecOf(4, 1);
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{24, 31}, {3, 90}, {90, 3}}) {
    const auto store = std::make_shared<const Numbered>(1, height, width, 1);
    const ImageRows rows(spec, {SourceOf(spec, store, {.crop = Crop::kRandomResized})}, false,
                         /*draws=*/true, 7);
    std::set<Floats> seen;
    for (int64_t sample = 0; sample < 100; ++sample) seen.insert(RowOf(rows, spec, sample).pixels);
    EXPECT_GT(seen.size(), height == 24 ? 95u : 0u);
  }
}

// From all over a source that lies class by class.
TEST(ImageRows, HeldOutImagesAreDrawnOnce) {
  const BatchSpec spec = SpecOf(2, 1);
  const ImageSource all = SourceOf(spec, std::make_shared<const Numbered>(1000, 2, 2, 1), {});
  const ImageRows::Parts parts = ImageRows::HoldOut(all, 0.1);
  EXPECT_EQ(parts.train.images.size(), 900u);
  EXPECT_EQ(parts.valid.images.size(), 100u);
  EXPECT_TRUE(std::is_sorted(parts.valid.images.begin(), parts.valid.images.end()));
  EXPECT_TRUE(std::is_sorted(parts.train.images.begin(), parts.train.images.end()));
  std::set<int32_t> both(parts.train.images.begin(), parts.train.images.end());
  both.insert(parts.valid.images.begin(), parts.valid.images.end());
  EXPECT_EQ(both.size(), 1000u);
  const auto first = static_cast<double>(std::count_if(
      parts.valid.images.begin(), parts.valid.images.end(), [](int32_t i) { return i < 500; }));
  EXPECT_NEAR(first, 50, 25);
  EXPECT_EQ(ImageRows::HoldOut(all, 0.1).valid.images, parts.valid.images);
  EXPECT_THROW(ImageRows::HoldOut(all, 0.0005), DataError);
}

TEST(ImageRows, SayWhatIsWrong) {
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
      return "";
    } catch (const DataError& error) {
      return error.what();
    }
  };
  const auto store = std::make_shared<const Numbered>(9, 2, 2, 3);
  EXPECT_EQ(message([&] { ImageRows::Whole(store, SpecOf(2, 3, 6)); }),
            "data: image 6: its label is 6, but the model has 6 classes: give model.num_labels");
  const BatchSpec grey = SpecOf(2, 1);
  const ImageRows rows(grey, {SourceOf(grey, store, {})}, false, true, 7);
  EXPECT_EQ(message([&] { RowOf(rows, grey, 2); }),
            "data: image 2: has 3 channels, but the model reads 1: give model.num_channels, or "
            "convert it");
  BatchSpec other = grey;
  other.inputs[0].sample = Shape{2, 3, 1};
  EXPECT_FALSE(IsOfImages(other));
  EXPECT_TRUE(IsOfImages(grey));
}

}  // namespace
}  // namespace fsdp::testing
