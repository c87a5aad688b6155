// Images in other sizes, to the bit as Image.crop(box) and Image.resize(..., Image.BILINEAR) of
// Pillow 13 make them of 8 bits a channel (github.com/python-pillow/Pillow,
// src/libImaging/Resample.c): a triangle as wide as a pixel of the smaller of both images, with
// weights of 22 bits, along rows and then along columns, with bytes in between. Where a box loses
// more than twice as many rows as columns, columns come first, which older versions do not know.
// Tests: tests/trainer/data/images/resize_image_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_IMAGES_RESIZE_IMAGE_H_
#define FSDP_TRAIN_TRAINER_DATA_IMAGES_RESIZE_IMAGE_H_

#include <cstdint>

#include "trainer/data/images/image_pixels.h"

namespace fsdp {

// A part of an image, in pixels.
struct ImageBox {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

// The box of `from`, [height, width] pixels large. `to` is another image. Its memory and that of
// what lies between is kept from call to call.
void ResizeImage(const ImagePixels& from, const ImageBox& box, int64_t height, int64_t width,
                 ImagePixels& to);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_IMAGES_RESIZE_IMAGE_H_
