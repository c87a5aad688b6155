// Images as Pillow reads them: tests/fixtures/images, as tools/reference/images.py writes them.
#ifndef FSDP_TRAIN_TESTS_TRAINER_DATA_PILLOW_IMAGES_H_
#define FSDP_TRAIN_TESTS_TRAINER_DATA_PILLOW_IMAGES_H_

#include <cstddef>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/data/images/image_pixels.h"

namespace fsdp::testing {

inline std::string ImageFixture(const std::string& name) {
  std::ifstream file("tests/fixtures/images/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The entries of a list of images.json; PixelsAt() is what a place of them holds.
inline nlohmann::json PillowImages(const std::string& list) {
  return nlohmann::json::parse(ImageFixture("images.json")).at(list);
}

inline ImagePixels PixelsAt(const nlohmann::json& place) {
  static const std::string all = ImageFixture("images.bin");
  ImagePixels pixels{place[0], place[1], place[2]};
  const auto begin = all.begin() + place[3].get<std::ptrdiff_t>();
  pixels.bytes.assign(begin, begin + pixels.height * pixels.width * pixels.channels);
  return pixels;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_DATA_PILLOW_IMAGES_H_
