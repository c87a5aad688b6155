#include "trainer/data/images/image_pixels.h"

#include <jerror.h>
#include <jpeglib.h>
#include <png.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <csetjmp>
#include <cstdio>  // Before jpeglib.h, which needs it.
#include <cstring>
#include <vector>

// Behind it:

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

namespace {

constexpr int kBits = 32 - 8 - 2;  // Bits of a weight; Pillow's PRECISION_BITS.

// Weights of the pixels that one of the new ones is made of: those from `first` on.
struct Taps {
  int64_t first = 0, count = 0;
  const int32_t* weights = nullptr;
};

// The filter that makes a row of `to` pixels from one of `from`.
class Filter {
 public:
  void Make(int64_t from, int64_t to) {
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    const double wide = std::max(scale, 1.0);
    const auto most = static_cast<int64_t>(std::ceil(wide)) * 2 + 1;
    taps_.assign(static_cast<size_t>(to), {});
    weights_.assign(static_cast<size_t>(to * most), 0);
    exact_.resize(static_cast<size_t>(most));
    for (int64_t i = 0; i < to; ++i) {
      const double center = (static_cast<double>(i) + 0.5) * scale;
      const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(center - wide + 0.5));
      const int64_t end = std::min<int64_t>(from, static_cast<int64_t>(center + wide + 0.5));
      double sum = 0;
      for (int64_t k = 0; k < end - first; ++k) {
        const double x = (static_cast<double>(k + first) - center + 0.5) * (1.0 / wide);
        const double weight = std::abs(x) < 1 ? 1 - std::abs(x) : 0;
        exact_[static_cast<size_t>(k)] = weight;
        sum += weight;
      }
      int32_t* const weights = weights_.data() + i * most;
      for (int64_t k = 0; k < end - first; ++k) {
        double weight = exact_[static_cast<size_t>(k)];
        if (sum != 0) weight /= sum;
        weights[k] = static_cast<int32_t>(0.5 + weight * (1 << kBits));
      }
      taps_[static_cast<size_t>(i)] = {first, end - first, weights};
    }
  }
  const Taps& operator[](int64_t i) const { return taps_[static_cast<size_t>(i)]; }

 private:
  std::vector<Taps> taps_;
  std::vector<int32_t> weights_;
  std::vector<double> exact_;
};

uint8_t Rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

// The new pixel, of values `stride` bytes apart.
uint8_t Mixed(const uint8_t* from, int64_t stride, const Taps& taps) {
  int32_t sum = 1 << (kBits - 1);
  for (int64_t k = 0; k < taps.count; ++k) sum += from[(taps.first + k) * stride] * taps.weights[k];
  return Rounded(sum);
}

// Bytes of a part of an image, rows `stride` bytes apart.
struct Plane {
  const uint8_t* bytes;
  int64_t height, width, channels, stride;
};

// Rows that are `width` pixels wide, one behind the other.
Plane AlongRows(const Plane& from, int64_t width, Filter& filter, std::vector<uint8_t>& to) {
  if (from.width == width) return from;
  const int64_t channels = from.channels, line = width * channels;
  to.resize(static_cast<size_t>(from.height * line));
  filter.Make(from.width, width);
  for (int64_t y = 0; y < from.height; ++y) {
    const uint8_t* const row = from.bytes + y * from.stride;
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        to[static_cast<size_t>(y * line + x * channels + c)] = Mixed(row + c, channels, filter[x]);
      }
    }
  }
  return {to.data(), from.height, width, channels, line};
}

Plane AlongColumns(const Plane& from, int64_t height, Filter& filter, std::vector<uint8_t>& to) {
  if (from.height == height) return from;
  const int64_t line = from.width * from.channels;
  to.resize(static_cast<size_t>(height * line));
  filter.Make(from.height, height);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t i = 0; i < line; ++i) {
      to[static_cast<size_t>(y * line + i)] = Mixed(from.bytes + i, from.stride, filter[y]);
    }
  }
  return {to.data(), height, from.width, from.channels, line};
}

}  // namespace

void ResizeImage(const ImagePixels& from, const ImageBox& box, int64_t height, int64_t width,
                 ImagePixels& to) {
  static thread_local Filter filter;
  static thread_local std::vector<uint8_t> between, last;
  const int64_t stride = from.width * from.channels, line = width * from.channels;
  Plane plane{from.bytes.data() + box.top * stride + box.left * from.channels, box.height,
              box.width, from.channels, stride};
  const int64_t fewer_rows = box.height - height;
  if (fewer_rows > 0 && fewer_rows > 2 * (box.width - width)) {
    plane = AlongRows(AlongColumns(plane, height, filter, between), width, filter, last);
  } else {
    plane = AlongColumns(AlongRows(plane, width, filter, between), height, filter, last);
  }
  to.height = height;
  to.width = width;
  to.channels = from.channels;
  to.bytes.resize(static_cast<size_t>(height * line));
  for (int64_t y = 0; y < height; ++y) {
    std::copy_n(plane.bytes + y * plane.stride, line, to.bytes.begin() + y * line);
  }
}

}  // namespace fsdp
