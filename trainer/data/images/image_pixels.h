// Tests: tests/trainer/data/images/decode_image_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_PIXELS_H_
#define FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_PIXELS_H_

#include <cstdint>
#include <vector>

namespace fsdp {

// The most that an image may have, as read and as resized: far above any photograph.
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

// An image as bytes, [height, width, channels].
struct ImagePixels {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> bytes = {};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_PIXELS_H_
