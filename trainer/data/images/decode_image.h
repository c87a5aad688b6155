// JPEG (libjpeg-turbo) and PNG (libpng) files as bytes, 8 bits a channel: 1 of grey, 3 of colours,
// and one more of what is transparent in a PNG. Palettes become colours, 16 bits the upper 8 of
// them. A JPEG's colours are as Pillow has them; its orientation is not looked at.
// Tests: tests/trainer/data/images/decode_image_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_IMAGES_DECODE_IMAGE_H_
#define FSDP_TRAIN_TRAINER_DATA_IMAGES_DECODE_IMAGE_H_

#include <string>
#include <string_view>

#include "trainer/data/images/image_pixels.h"

namespace fsdp {

// Whether the name is an image's: .jpg, .jpeg or .png, in letters of any case.
bool IsImageName(std::string_view name);

// Decodes `file` into `pixels`, whose memory is kept from call to call. Returns the file's fault,
// or nothing: "is no JPEG and no PNG", "is damaged: premature end of JPEG file".
std::string DecodeImage(std::string_view file, ImagePixels& pixels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_IMAGES_DECODE_IMAGE_H_
