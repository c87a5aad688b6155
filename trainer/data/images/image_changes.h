// The changes to an image before a model sees it: it is cut, resized as Pillow does
// (resize_image.h), flipped, and turned into numbers: (byte / 255 - mean) / std.
// Tests: tests/trainer/data/images/image_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_CHANGES_H_
#define FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_CHANGES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/philox.h"
#include "trainer/data/images/image_pixels.h"

namespace fsdp {

// The part of an image that becomes the model's square. kNone: all of it, whatever its shape.
// kCenter, kRandom: a square from the middle or from anywhere, after the image's shorter side has
// been resized to ImageChanges::size pixels. kRandomResized: a box of 8 to 100 % of the image, from
// 3 : 4 to 4 : 3, as torchvision's RandomResizedCrop draws them.
enum class Crop { kNone, kCenter, kRandom, kRandomResized };

struct ImageChanges {
  int64_t size = 0;  // For kCenter and kRandom; 0: the model's.
  Crop crop = Crop::kNone;
  bool flip = false;                              // Every other image, left for right.
  std::vector<double> mean = {0.5}, std = {0.5};  // One a channel, or one for all.

  bool operator==(const ImageChanges&) const = default;
};

// Why an image of that shape cannot be changed so, or nothing: "has 1 x 65535 pixels, ...". A thin
// image becomes very long when its shorter side is resized for a crop.
std::string WhyNotChanged(const ImagePixels& image, const ImageChanges& changes, int64_t side);

// Changes an image for which WhyNotChanged() returns nothing. pixels: [side, side, channels]. With
// a null `draws` nothing is drawn: crops are in the middle, and kRandomResized takes the largest
// square.
void ChangeImage(const ImagePixels& image, const ImageChanges& changes, const RandomStream* draws,
                 int64_t side, std::span<float> pixels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_CHANGES_H_
