#include <gtest/gtest.h>

#include "tests/trainer/data/pillow_images.h"
#include "trainer/data/images/image_pixels.h"

namespace fsdp::testing {
namespace {

TEST(ResizeImage, IsPillowsToTheBit) {
  const nlohmann::json cases = PillowImages("resized");
  ASSERT_EQ(cases.size(), 48u);
  ImagePixels got;  // Larger and smaller ones in turn, in the same memory.
  for (const nlohmann::json& c : cases) {
    const nlohmann::json& box = c.at("box");
    const ImagePixels want = PixelsAt(c.at("want"));
    ResizeImage(PixelsAt(c.at("image")), {box[0], box[1], box[2], box[3]}, want.height, want.width,
                got);
    EXPECT_EQ(got.bytes, want.bytes) << c;
    EXPECT_EQ(got.height, want.height);
    EXPECT_EQ(got.width, want.width);
    EXPECT_EQ(got.channels, want.channels);
  }
}

}  // namespace
}  // namespace fsdp::testing
