#include "trainer/data/images/image_store.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/trainer/data/pillow_images.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp::testing {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

std::string Number(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

// Byte i is i.
std::string Counting(size_t n) {
  std::string bytes;
  for (size_t i = 0; i < n; ++i) bytes += static_cast<char>(i);
  return bytes;
}

std::string Idx(const std::vector<uint32_t>& sizes, const std::string& bytes) {
  std::string file = Number(0x800 + static_cast<uint32_t>(sizes.size()));
  for (const uint32_t size : sizes) file += Number(size);
  return file + bytes;
}

class ImageStores : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(directory_ + "/" + name).parent_path());
    WriteAtomicFile(directory_ + "/" + name, bytes);
    return directory_ + "/" + name;
  }
  std::string Compressed(const std::string& path) const {
    EXPECT_EQ(std::system(("gzip -k " + path).c_str()), 0);
    return path + ".gz";
  }
  std::string Refusal(const std::vector<std::string>& paths,
                      const std::vector<std::string>& labels = {}) const {
    try {
      OpenImages({paths, labels, "r.yaml:1:2: data.train.paths", "r.yaml:1:2: data.train.labels"});
      return "";
    } catch (const DataError& error) {
      std::string text = error.what();
      for (size_t at; (at = text.find(directory_ + "/")) != std::string::npos;) {
        text.erase(at, directory_.size() + 1);
      }
      return text;
    }
  }

  const std::string directory_ = FreshDirectory("images");
};

ImagePixels Read(const ImageStore& store, int64_t i) {
  ImagePixels pixels;
  store.Read(i, pixels);
  return pixels;
}

TEST_F(ImageStores, IdxFilesOneBehindTheOther) {
  const std::string grey = Write("grey", Idx({3, 2, 3}, Counting(18)));
  const std::string colours = Write("colours", Idx({2, 1, 2, 3}, Counting(12)));
  const std::string first = Write("first", Idx({3}, {5, 0, 9}));
  const std::string second = Write("second", Idx({2}, {7, static_cast<char>(255)}));
  for (const bool compressed : {false, true}) {
    const auto file = [&](const std::string& path) { return compressed ? Compressed(path) : path; };
    const auto store = OpenImages({{file(grey), file(colours)}, {file(first), file(second)}});
    ASSERT_EQ(store->size(), 5);
    const ImagePixels of_grey = Read(*store, 1), of_colours = Read(*store, 4);
    EXPECT_EQ(of_grey.height, 2);
    EXPECT_EQ(of_grey.width, 3);
    EXPECT_EQ(of_grey.channels, 1);
    EXPECT_EQ(of_grey.bytes, (Bytes{6, 7, 8, 9, 10, 11}));
    EXPECT_EQ(of_colours.channels, 3);
    EXPECT_EQ(of_colours.bytes, (Bytes{6, 7, 8, 9, 10, 11}));
    std::vector<int32_t> labels;
    for (int64_t i = 0; i < 5; ++i) labels.push_back(store->Label(i));
    EXPECT_EQ(labels, (std::vector<int32_t>{5, 0, 9, 7, 255}));
    EXPECT_EQ(store->Where(4), (compressed ? colours + ".gz" : colours) + ", image 1");
    EXPECT_EQ(store->Files().size(), 4u);
    EXPECT_TRUE(store->classes().empty());
  }
}

// Red, green and blue lie apart in them; of two labels the second is the finer one.
TEST_F(ImageStores, CifarsRecords) {
  std::string ten, hundred;
  for (const char label : {3, 8}) {
    std::string planes;
    for (int i = 0; i < 3 * 1024; ++i) planes += static_cast<char>(i / 1024 * 100 + i % 32 + label);
    ten += label + planes;
    hundred += std::string{1, static_cast<char>(label + 60)} + planes;
  }
  const auto store = OpenImages({{Write("ten.bin", ten), Write("hundred.bin", hundred)}, {}});
  ASSERT_EQ(store->size(), 4);
  EXPECT_EQ(store->Label(0), 3);
  EXPECT_EQ(store->Label(1), 8);
  EXPECT_EQ(store->Label(3), 68);
  for (const int64_t i : {1, 3}) {
    const ImagePixels image = Read(*store, i);
    EXPECT_EQ(image.height, 32);
    EXPECT_EQ(image.width, 32);
    ASSERT_EQ(image.channels, 3);
    for (int at = 0; at < 3 * 1024; ++at) {
      ASSERT_EQ(image.bytes[static_cast<size_t>(at)], at % 3 * 100 + at / 3 % 32 + 8) << at;
    }
  }
}

TEST_F(ImageStores, FoldersAreClassesInTheOrderOfTheirNames) {
  const std::string jpeg = ImageFixture("colours.jpg"), png = ImageFixture("grey.png");
  Write("a/dog/2.png", png);
  Write("a/dog/10.JPG", jpeg);
  Write("a/dog/notes.txt", "no image");
  Write("a/dog/.hidden.png", png);
  Write("a/cat/7.jpeg", jpeg);
  Write("b/fish/1.png", png);
  Write("a/readme.png", png);  // In no class.
  std::string said;
  ImagePaths paths{{directory_ + "/a", directory_ + "/b"}, {}};
  paths.say = [&](const std::string& line) { said += line; };
  const auto store = OpenImages(paths);
  EXPECT_NE(said.find(": 2 files are left out, "), std::string::npos) << said;
  EXPECT_TRUE(said.ends_with("/a/dog/notes.txt is the first")) << said;
  EXPECT_EQ(store->classes(), (std::vector<std::string>{"cat", "dog", "fish"}));
  ASSERT_EQ(store->size(), 4);
  std::vector<std::string> places;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < 4; ++i) {
    places.push_back(store->Where(i).substr(directory_.size() + 1));
    labels.push_back(store->Label(i));
  }
  EXPECT_EQ(places, (std::vector<std::string>{"a/cat/7.jpeg", "a/dog/10.JPG", "a/dog/2.png",
                                              "b/fish/1.png"}));
  EXPECT_EQ(labels, (std::vector<int32_t>{0, 1, 1, 2}));
  EXPECT_EQ(Read(*store, 0).channels, 3);
  EXPECT_EQ(Read(*store, 3).channels, 1);
}

// By names, sizes and what 256 of them hold.
TEST_F(ImageStores, AFolderIsKnownAgain) {
  for (int i = 0; i < 600; ++i) {
    Write("f/c/" + std::to_string(1000 + i) + ".png", "file " + std::to_string(1000 + i));
  }
  const auto files = [&] { return OpenImages({{directory_ + "/f"}, {}})->Files(); };
  const std::vector<DataFile> before = files();
  ASSERT_EQ(before.size(), 1u);
  EXPECT_EQ(before[0].path, directory_ + "/f");
  EXPECT_EQ(before[0].bytes, 600 * 9);
  EXPECT_EQ(files(), before);
  for (const char* looked_at : {"1000", "1599"}) {
    const std::string path = std::string("f/c/") + looked_at + ".png";
    Write(path, "File " + std::string(looked_at));
    EXPECT_NE(files(), before) << looked_at;
    Write(path, "file " + std::string(looked_at));
  }
  Write("f/c/1001.png", "longer file");
  EXPECT_NE(files(), before);
  Write("f/c/1001.png", "file 1001");
  EXPECT_EQ(files(), before);
  fs::rename(directory_ + "/f/c/1001.png", directory_ + "/f/c/1001b.png");
  EXPECT_NE(files(), before);
}

// A message stays a line.
TEST_F(ImageStores, NamesMayHoldLineFeeds) {
  Write("l/a\nb/1\n2.png", ImageFixture("grey.png"));
  Write("l/c/3\n4.png", "no image");
  const auto store = OpenImages({{directory_ + "/l"}, {}});
  EXPECT_EQ(store->Where(0), directory_ + "/l/a\\x0ab/1\\x0a2.png");
  EXPECT_EQ(Read(*store, 0).channels, 1);
  try {
    Read(*store, 1);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.what(), "data: " + directory_ + "/l/c/3\\x0a4.png: is no JPEG and no PNG");
  }
  const std::vector<DataFile> before = store->Files();
  fs::rename(directory_ + "/l/c/3\n4.png", directory_ + "/l/c/3.png");
  EXPECT_NE(OpenImages({{directory_ + "/l"}, {}})->Files(), before);
  EXPECT_EQ(Refusal({Write("x\ny", "text")}).find("data: x\\x0ay: is neither an IDX"), 0u);
  EXPECT_NE(Refusal({"x\nz"}).find("x\\x0az: does not exist"), std::string::npos);
}

// It is looked at no further than its header says that it goes.
TEST_F(ImageStores, WhatInflatesBeyondItsHeaderIsRefused) {
  const std::string zeros(size_t{1} << 20, '\0');
  const std::string images = Write("images", Idx({3, 1, 2}, Counting(6)));
  const std::string labels = Write("labels", Idx({3}, {1, 2, 3}));
  const std::string bomb = Compressed(Write("bomb", Idx({3, 1, 2}, zeros)));
  const std::string more = Compressed(Write("more", Idx({3, 1, 2}, Counting(7))));
  const std::string few = Compressed(Write("few", Idx({3, 1, 2}, Counting(5))));
  const std::string many = Compressed(Write("many", Idx({3}, zeros)));
  const std::string beyond = " bytes when decompressed, which is what its header says: ";
  EXPECT_EQ(Refusal({bomb}, {labels}), "data: bomb.gz: has more than 22" + beyond + "3 x 1 x 2");
  EXPECT_EQ(Refusal({more}, {labels}), "data: more.gz: has more than 22" + beyond + "3 x 1 x 2");
  EXPECT_EQ(Refusal({images}, {many}), "data: many.gz: has more than 11" + beyond + "3");
  EXPECT_EQ(Refusal({few}, {labels}),
            "data: few.gz: has 5 bytes behind its header, which says that there are 3 x 1 x 2");
  EXPECT_EQ(Refusal({Compressed(images)}, {Compressed(labels)}), "");
  const std::string huge =
      Compressed(Write("huge", Idx({0xffffffff, 0xffffffff, 0xffffffff}, "x")));
  EXPECT_EQ(Refusal({huge}, {labels}).find("data: huge.gz: has 1 bytes behind its header"), 0u);
}

// Before a run has done a step: the first of those that a model cannot read.
TEST_F(ImageStores, HeadersAreLookedAtForAModel) {
  for (int i = 0; i < 200; ++i) {
    Write("h/c/" + std::to_string(1000 + i) + ".png",
          ImageFixture(i % 2 ? "grey.png" : "bits.png"));
  }
  const auto refusal = [&](int64_t channels, const std::string& path,
                           std::function<std::string(const ImagePixels&)> why_not = nullptr) {
    try {
      ImagePaths paths;
      paths.paths = {path};
      paths.channels = channels;
      paths.why_not = std::move(why_not);
      if (path.ends_with("images")) paths.labels = {directory_ + "/labels"};
      const auto store = OpenImages(paths);
      for (const int64_t i : {int64_t{0}, store->size() - 1}) {
        EXPECT_EQ(Read(*store, i).channels, channels);
      }
      return std::string();
    } catch (const DataError& error) {
      return std::string(error.what()).substr(std::string("data: ").size() + directory_.size() + 1);
    }
  };
  const std::string folder = directory_ + "/h";
  EXPECT_EQ(refusal(1, folder), "");
  EXPECT_EQ(refusal(3, folder), "");
  for (const char* name : {"1150", "1077"}) Write("h/c/" + std::string(name) + ".png", "GIF89a");
  EXPECT_EQ(refusal(3, folder),
            "h/c/1077.png: is no JPEG and no PNG, but GIF: convert it, or leave it out");
  Write("h/c/1060.png", ImageFixture("colours.jpg"));  // Whatever its name.
  EXPECT_EQ(refusal(1, folder),
            "h/c/1060.png: has 3 channels, but the model reads 1: give model.num_channels, or "
            "convert it");
  EXPECT_EQ(
      refusal(3, folder, [](const ImagePixels& size) { return size.width > 40 ? "is wide" : ""; }),
      "h/c/1060.png: is wide");
  Write("h/c/1001.png", ImageFixture("grey.png").substr(0, 20));
  EXPECT_EQ(refusal(3, folder), "h/c/1001.png: is damaged: premature end of PNG file");
  // Cut off behind its header.
  const std::string jpeg = ImageFixture("colours.jpg");
  Write("h/c/1000.png", jpeg.substr(0, jpeg.size() / 2));
  EXPECT_EQ(refusal(3, folder), "h/c/1000.png: is damaged: Premature end of JPEG file");
  Write("h/c/1000.png", jpeg + "more");  // It is whole.
  EXPECT_EQ(refusal(3, folder), "h/c/1001.png: is damaged: premature end of PNG file");

  Write("labels", Idx({3}, {1, 2, 3}));
  const std::string grey = Write("images", Idx({3, 1, 2}, Counting(6)));
  EXPECT_EQ(refusal(3, grey), "");
  Write("images", Idx({3, 1, 2, 3}, Counting(18)));
  EXPECT_EQ(refusal(1, grey),
            "images: image 0: has 3 channels, but the model reads 1: give model.num_channels, or "
            "convert it");
}

TEST_F(ImageStores, SayWhatIsWrong) {
  EXPECT_EQ(
      Refusal({Write("zipped", "\x1f\x8b\x08")}),
      "data: zipped: is compressed by gzip, not images as IDX: rename it: mv zipped zipped.gz");
  const std::string images = Write("images", Idx({3, 1, 2}, Counting(6)));
  const std::string labels = Write("labels", Idx({3}, {1, 2, 3}));
  EXPECT_EQ(Refusal({images}),
            "data: images: is an IDX file, and no file of labels belongs to it: r.yaml:1:2: "
            "data.train.labels has 0 files");
  EXPECT_EQ(Refusal({images}, {labels, labels}),
            "data: labels: is a file of labels, but the paths hold no more than 1 IDX file of "
            "images");
  EXPECT_EQ(Refusal({images}, {images}), "data: images: is no IDX file of labels");
  EXPECT_EQ(Refusal({labels}, {labels}), "data: labels: is an IDX file, but not of images");
  EXPECT_EQ(Refusal({images}, {Write("few", Idx({2}, {1, 2}))}),
            "data: few: has 2 labels, and images 3 images");
  EXPECT_EQ(Refusal({Write("short", Idx({3, 1, 2}, Counting(5)))}, {labels}),
            "data: short: has 5 bytes behind its header, which says that there are 3 x 1 x 2");
  EXPECT_EQ(Refusal({Write("flat", Idx({3, 0, 2}, ""))}, {labels}),
            "data: flat: holds nothing: its header says 3 x 0 x 2");
  EXPECT_EQ(Refusal({Write("huge", Idx({0xffffffff, 0xffffffff, 0xffffffff}, "x"))}, {labels}),
            "data: huge: has 1 bytes behind its header, which says that there are 4294967295 x "
            "4294967295 x 4294967295");
  EXPECT_EQ(Refusal({Write("five", Number(0x805))}, {labels}),
            "data: five: is no IDX file of labels or images: 5 dimensions, or cut off");
  EXPECT_EQ(Refusal({Write("text", "some text")}).find("data: text: is neither an IDX file"), 0u);
  EXPECT_EQ(Refusal({Write("none", Idx({0, 1, 2}, ""))}, {Write("no", Idx({0}, ""))}),
            "data: none: holds no image");
  EXPECT_EQ(Refusal({"missing"}).find("r.yaml:1:2: data.train.paths: missing: does not exist"), 0u);
  fs::create_directories(directory_ + "/empty/class");
  EXPECT_EQ(Refusal({directory_ + "/empty"}).find("r.yaml:1:2: data.train.paths: empty: holds no"),
            0u);
  Write("folder/class/1.png", ImageFixture("grey.png"));
  EXPECT_EQ(Refusal({images, directory_ + "/folder"}),
            "data: images: is a file, but another path is a folder of images");
  EXPECT_EQ(Refusal({directory_ + "/folder"}, {labels}),
            "data: labels: is a file of labels, but the labels of folders are their names");
  const std::string broken = Write("folder/class/2.jpg", "\xff\xd8 broken");
  const auto store = OpenImages({{directory_ + "/folder"}, {}});
  try {
    Read(*store, 1);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()).find("data: " + broken + ": is damaged: "), 0u)
        << error.what();
  }
}

}  // namespace
}  // namespace fsdp::testing
