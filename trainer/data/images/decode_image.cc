#include "trainer/data/images/decode_image.h"

#include <jpeglib.h>

#include <algorithm>
#include <cctype>
#include <csetjmp>
#include <cstdio>  // Before jpeglib.h, which needs it.
#include <cstring>
// Behind it:
#include <jerror.h>
#include <png.h>

namespace fsdp {
namespace {

// Both libraries leave by longjmp: what they pass on the way has no destructors.
struct JpegErrors {
  jpeg_error_mgr base;
  std::jmp_buf leave;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void LeaveJpeg(j_common_ptr info) {
  auto* const errors = reinterpret_cast<JpegErrors*>(info->err);
  errors->base.format_message(info, errors->message);
  std::longjmp(errors->leave, 1);
}

// Where data is missing or wrong, libjpeg warns and makes up an image. Bytes too many do no harm.
void LeaveJpegWhereDamaged(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  const bool harmless = code != JWRN_JPEG_EOF && code != JWRN_HIT_MARKER &&
                        code != JWRN_HUFF_BAD_CODE && code != JWRN_BOGUS_PROGRESSION;
  if (level < 0 && !harmless) LeaveJpeg(info);
}

std::string DecodeJpeg(std::string_view file, ImagePixels& pixels) {
  jpeg_decompress_struct info;
  JpegErrors errors;
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = &LeaveJpeg;
  errors.base.emit_message = &LeaveJpegWhereDamaged;
  if (setjmp(errors.leave) != 0) {  // NOLINT(cert-err52-cpp): libjpeg has no other way.
    jpeg_destroy_decompress(&info);
    return std::string("is damaged: ") + errors.message;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  const bool grey = info.num_components == 1;
  if (!grey && info.num_components != 3) {
    const int channels = info.num_components;
    jpeg_destroy_decompress(&info);
    return "has " + std::to_string(channels) + " channels, which are no colours: convert it";
  }
  info.out_color_space = grey ? JCS_GRAYSCALE : JCS_RGB;
  if (int64_t{info.image_width} * info.image_height > kMaxImagePixels) {
    jpeg_destroy_decompress(&info);
    return "has more than 268435456 pixels";
  }
  jpeg_start_decompress(&info);
  pixels.height = info.output_height;
  pixels.width = info.output_width;
  pixels.channels = info.output_components;
  pixels.bytes.resize(static_cast<size_t>(pixels.height * pixels.width * pixels.channels));
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels.bytes.data() + info.output_scanline * pixels.width * pixels.channels;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return "";
}

struct PngInput {
  const char* at;
  size_t left;
  char message[128];
};

[[noreturn]] void LeavePng(png_structp png, png_const_charp message) {
  auto* const input = static_cast<PngInput*>(png_get_error_ptr(png));
  std::snprintf(input->message, sizeof(input->message), "%s", message);
  png_longjmp(png, 1);
}

void IgnorePngWarning(png_structp, png_const_charp) {}

void ReadPng(png_structp png, png_bytep to, size_t n) {
  auto* const input = static_cast<PngInput*>(png_get_io_ptr(png));
  if (n > input->left) png_error(png, "premature end of PNG file");
  std::memcpy(to, input->at, n);
  input->at += n;
  input->left -= n;
}

std::string DecodePng(std::string_view file, ImagePixels& pixels) {
  PngInput input{file.data(), file.size(), {}};
  png_structp png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, &LeavePng, &IgnorePngWarning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  if (info == nullptr) {
    png_destroy_read_struct(&png, nullptr, nullptr);
    return "cannot be decoded: no memory";
  }
  if (setjmp(png_jmpbuf(png)) != 0) {  // NOLINT(cert-err52-cpp): libpng has no other way.
    png_destroy_read_struct(&png, &info, nullptr);
    return std::string("is damaged: ") + input.message;
  }
  png_set_read_fn(png, &input, &ReadPng);
  png_read_info(png, info);
  const int64_t height = png_get_image_height(png, info), width = png_get_image_width(png, info);
  if (height * width > kMaxImagePixels) png_error(png, "more than 268435456 pixels");
  png_set_strip_16(png);
  png_set_packing(png);
  const int type = png_get_color_type(png, info);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  pixels.height = height;
  pixels.width = width;
  pixels.channels = png_get_channels(png, info);
  pixels.bytes.resize(static_cast<size_t>(height * width * pixels.channels));
  for (int pass = 0; pass < passes; ++pass) {
    for (int64_t y = 0; y < height; ++y) {
      png_read_row(png, pixels.bytes.data() + y * width * pixels.channels, nullptr);
    }
  }
  png_read_end(png, nullptr);
  png_destroy_read_struct(&png, &info, nullptr);
  return "";
}

}  // namespace

bool IsImageName(std::string_view name) {
  const auto ends_in = [&](std::string_view end) {
    return name.size() > end.size() &&
           std::equal(end.begin(), end.end(), name.end() - std::ssize(end), [](char a, char b) {
             return a == std::tolower(static_cast<unsigned char>(b));
           });
  };
  return ends_in(".jpg") || ends_in(".jpeg") || ends_in(".png");
}

std::string DecodeImage(std::string_view file, ImagePixels& pixels) {
  if (file.starts_with("\xff\xd8")) return DecodeJpeg(file, pixels);
  if (file.starts_with("\x89PNG")) return DecodePng(file, pixels);
  return "is no JPEG and no PNG";
}

}  // namespace fsdp
