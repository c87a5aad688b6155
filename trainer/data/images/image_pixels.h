// Tests: tests/trainer/data/images/decode_image_test.cc
// Tests: tests/trainer/data/images/resize_image_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_PIXELS_H_
#define FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_PIXELS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// The most that an image may have, as read and as resized: where Pillow warns of a file made to
// fill memory (Image.MAX_IMAGE_PIXELS).
inline constexpr int64_t kMaxImagePixels = 89'478'485;

// An image as bytes, [height, width, channels].
struct ImagePixels {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> bytes = {};
};

// JPEG (libjpeg-turbo) and PNG (libpng) files as bytes, 8 bits a channel: 1 of grey, 3 of colours,
// and one more of what is transparent in a PNG. Palettes and inks become colours, 16 bits the upper
// 8 of them. Colours are as Pillow's convert("RGB") has them; a JPEG's orientation is not looked
// at.

// Whether the name is an image's: .jpg, .jpeg or .png, in letters of any case.
bool IsImageName(std::string_view name);

// Decodes `file` into `pixels`, whose memory is kept from call to call, with `channels`, which are
// those that CanConvert(), or with its own for 0. Returns the file's fault, or nothing: "is no JPEG
// and no PNG", "is damaged: premature end of JPEG file". Takes no memory for an image that is too
// large.
std::string DecodeImage(std::string_view file, ImagePixels& pixels, int64_t channels = 0);
// DecodeImage() as far as the header: `pixels` has no bytes. A file that does not end as its format
// does, as one that was cut off, is decoded to its end.
std::string LookAtImage(std::string_view file, ImagePixels& pixels, int64_t channels = 0);

// Whether an image becomes one of `to` channels as by Pillow's convert("RGB"), or convert("L") for
// one channel, and loses no colour: grey is repeated, transparency is left out.
bool CanConvert(int64_t from, int64_t to);
void ConvertChannels(int64_t to, ImagePixels& pixels);
std::string WrongChannels(int64_t from, int64_t to);  // Why not, in words.

// Images in other sizes, to the bit as Image.crop(box) and Image.resize(..., Image.BILINEAR) of
// Pillow 13 make them of 8 bits a channel (github.com/python-pillow/Pillow,
// src/libImaging/Resample.c): a triangle as wide as a pixel of the smaller of both images, with
// weights of 22 bits, along rows and then along columns, with bytes in between. Where a box loses
// more than twice as many rows as columns, columns come first, which older versions do not know.

// A part of an image, in pixels.
struct ImageBox {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

// The box of `from`, [height, width] pixels large. `to` is another image. Its memory and that of
// what lies between is kept from call to call.
void ResizeImage(const ImagePixels& from, const ImageBox& box, int64_t height, int64_t width,
                 ImagePixels& to);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_PIXELS_H_
