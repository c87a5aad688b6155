#include <gtest/gtest.h>
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "tests/trainer/data/pillow_images.h"
#include "trainer/core/philox.h"
#include "trainer/data/images/image_pixels.h"

namespace fsdp::testing {
namespace {

TEST(DecodeImage, IsWhatPillowReads) {
  const nlohmann::json files = PillowImages("decoded");
  ASSERT_EQ(files.size(), 9u);
  ImagePixels got;
  for (const nlohmann::json& entry : files) {
    const std::string name = entry.at("file");
    const ImagePixels want = PixelsAt(entry.at("want"));
    EXPECT_TRUE(IsImageName(name)) << name;
    EXPECT_EQ(DecodeImage(ImageFixture(name), got), "") << name;
    EXPECT_EQ(got.height, want.height) << name;
    EXPECT_EQ(got.width, want.width) << name;
    EXPECT_EQ(got.channels, want.channels) << name;
    EXPECT_EQ(got.bytes, want.bytes) << name;
  }
}

// Grey, transparency, palettes, 16 bits and inks become colours as convert("RGB") makes them.
TEST(DecodeImage, ColoursAreWhatPillowConvertsTo) {
  const nlohmann::json files = PillowImages("converted");
  ASSERT_EQ(files.size(), 17u);
  ImagePixels got;
  for (const nlohmann::json& entry : files) {
    const std::string name = entry.at("file"), file = ImageFixture(name);
    const ImagePixels want = PixelsAt(entry.at("want"));
    EXPECT_EQ(DecodeImage(file, got, 3), "") << name;
    EXPECT_EQ(got.channels, 3) << name;
    EXPECT_EQ(got.bytes, want.bytes) << name;
    EXPECT_EQ(LookAtImage(file, got, 3), "") << name;
    EXPECT_EQ(got.height, want.height) << name;
    EXPECT_EQ(got.width, want.width) << name;
  }
  EXPECT_EQ(DecodeImage(ImageFixture("grey_alpha.png"), got, 1), "");
  EXPECT_EQ(got.channels, 1);
  for (const char* name :
       {"colours.jpg", "transparent.png", "cmyk.jpg"}) {  // Colours would be lost.
    EXPECT_NE(DecodeImage(ImageFixture(name), got, 1).find("but the model reads 1: give model."),
              std::string::npos)
        << name;
  }
}

// The header alone tells, before there is memory for it.
TEST(DecodeImage, TooManyPixelsAreRefusedByTheHeader) {
  std::string png = ImageFixture("colours.png"), jpeg = ImageFixture("colours.jpg");
  const auto write = [](std::string& file, size_t at, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      file[at + static_cast<size_t>(i)] = static_cast<char>(value >> 8 * (bytes - 1 - i));
    }
  };
  write(png, 16, 16000, 4);
  write(png, 20, 16000, 4);
  write(png, 29, static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(&png[12]), 17)), 4);
  const size_t frame = jpeg.find("\xff\xc0");
  write(jpeg, frame + 5, 65500, 2);
  write(jpeg, frame + 7, 65500, 2);
  ImagePixels pixels;
  for (const auto& [file, side] : {std::pair(png, "16000"), {jpeg, "65500"}}) {
    const std::string want = std::string("has ") + side + " x " + side +
                             " pixels, more than 89478485: leave it out, or scale it";
    EXPECT_EQ(DecodeImage(file, pixels), want);
    EXPECT_EQ(LookAtImage(file, pixels, 3), want);
  }
  EXPECT_LT(pixels.bytes.capacity(), 1u << 20);
}

TEST(DecodeImage, SaysWhatIsWrong) {
  ImagePixels pixels;
  const std::string jpeg = ImageFixture("colours.jpg"), png = ImageFixture("colours.png");
  EXPECT_EQ(DecodeImage("", pixels), "is no JPEG and no PNG");
  for (const auto& [file, what] : {std::pair("GIF89a", "GIF"),
                                   {"RIFF____WEBPVP8 ", "WebP"},
                                   {"____ftypavif", "AVIF"},
                                   {"____ftypheic", "HEIF"},
                                   {"II*", "TIFF"},
                                   {"<!DOCTYPE html>", "HTML or XML"}}) {
    EXPECT_EQ(DecodeImage(std::string(file) + '\0', pixels),
              std::string("is no JPEG and no PNG, but ") + what + ": convert it, or leave it out");
  }
  EXPECT_EQ(DecodeImage(png.substr(0, png.size() / 2), pixels),
            "is damaged: premature end of PNG file");
  EXPECT_EQ(DecodeImage(jpeg.substr(0, jpeg.size() / 2), pixels),
            "is damaged: Premature end of JPEG file");
  std::string other = png;
  other[png.size() / 2] ^= 1;
  EXPECT_EQ(DecodeImage(other, pixels).find("is damaged: "), 0u);
  for (const char* name : {"a.jp", ".png", "jpg", "a.gif", "a.png.gz"}) {
    EXPECT_FALSE(IsImageName(name)) << name;
  }
}

// Whatever stands in a file, it is an image or it is not; the sanitizers see the rest.
TEST(DecodeImage, SurvivesMutatedFiles) {
  for (const char* name : {"colours.jpg", "progressive.jpeg", "colours.png", "palette.png"}) {
    const std::string file = ImageFixture(name);
    const RandomStream random(3, name);
    ImagePixels pixels;
    int damaged = 0;
    constexpr int kTimes = 400;
    for (uint64_t i = 0; i < kTimes; ++i) {
      std::string changed = file;
      for (uint64_t k = 0; k <= i % 4; ++k) {
        const uint64_t at = 8 * (4 * i + k);
        changed[random.Below(at, file.size())] = static_cast<char>(random.Below(at + 1, 256));
      }
      if (i % 5 == 0) changed.resize(random.Below(8 * 4 * kTimes + i, file.size()));
      damaged += DecodeImage(changed, pixels).empty() ? 0 : 1;
    }
    EXPECT_GT(damaged, kTimes / 10) << name;
  }
}

}  // namespace
}  // namespace fsdp::testing
