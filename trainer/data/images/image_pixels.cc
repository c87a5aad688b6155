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
#include <utility>
#include <vector>

#include "trainer/core/read_file.h"

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

// A scan may be a few bytes, and costs a pass over the whole image: honest files have some ten.
void LeaveJpegOfManyScans(j_common_ptr info) {
  constexpr int kMostScans = 500;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostScans) return;
  auto* const errors = reinterpret_cast<JpegErrors*>(info->err);
  std::snprintf(errors->message, sizeof(errors->message), "it has more than %d scans", kMostScans);
  std::longjmp(errors->leave, 1);
}

// A decoder is asked for this.
struct Wanted {
  int64_t channels;  // 0: the file's own.
  bool size_alone;   // Nothing behind the header is read.
};

std::string WhyNot(const ImagePixels& image, const Wanted& wanted) {
  if (image.height * image.width > kMaxImagePixels) {
    return "has " + std::to_string(image.height) + " x " + std::to_string(image.width) +
           " pixels, more than " + std::to_string(kMaxImagePixels) + ": leave it out, or scale it";
  }
  if (wanted.channels == 0 || CanConvert(image.channels, wanted.channels)) return "";
  return WrongChannels(image.channels, wanted.channels);
}

std::string NoColours(int channels) {
  return "has " + std::to_string(channels) + " channels, which are no colours: convert it";
}

// Pillow's cmyk2rgb(), of Adobe's inverted inks, in place.
void FromInks(ImagePixels& pixels) {
  const auto n = static_cast<size_t>(pixels.height * pixels.width);
  for (size_t i = 0; i < n; ++i) {
    const uint8_t* const inks = pixels.bytes.data() + 4 * i;
    const int light = inks[3];
    uint8_t colours[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - inks[c]) * light + 128;
      colours[c] = static_cast<uint8_t>(light - (((product >> 8) + product) >> 8));
    }
    std::copy_n(colours, 3, pixels.bytes.begin() + static_cast<ptrdiff_t>(3 * i));
  }
  pixels.channels = 3;
  pixels.bytes.resize(3 * n);
}

std::string DecodeJpeg(std::string_view file, const Wanted& wanted, ImagePixels& pixels) {
  jpeg_decompress_struct info;
  jpeg_progress_mgr progress = {};
  progress.progress_monitor = &LeaveJpegOfManyScans;
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
  const int parts = info.num_components;
  pixels.height = info.image_height;
  pixels.width = info.image_width;
  pixels.channels = parts == 4 ? 3 : parts;
  const bool known = parts == 1 || parts == 3 || parts == 4;
  if (std::string wrong = known ? WhyNot(pixels, wanted) : NoColours(parts);
      !wrong.empty() || wanted.size_alone) {
    jpeg_destroy_decompress(&info);
    return wrong;
  }
  info.progress = &progress;
  info.out_color_space = parts == 1 ? JCS_GRAYSCALE : parts == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_start_decompress(&info);
  pixels.bytes.resize(static_cast<size_t>(pixels.height * pixels.width * parts));
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels.bytes.data() + info.output_scanline * pixels.width * parts;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  if (parts == 4) FromInks(pixels);
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

// The upper bytes of 16 bits are Pillow's, but for grey, which it cuts off at 255 where it makes
// colours of it.
void CutOff(ImagePixels& pixels) {
  for (size_t i = 0; i < pixels.bytes.size() / 2; ++i) {
    pixels.bytes[i] = pixels.bytes[2 * i] > 0 ? 255 : pixels.bytes[2 * i + 1];
  }
  pixels.bytes.resize(pixels.bytes.size() / 2);
}

std::string DecodePng(std::string_view file, const Wanted& wanted, ImagePixels& pixels) {
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
  const int type = png_get_color_type(png, info);
  const bool deep_grey =
      type == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) == 16 && wanted.channels == 3;
  if (!deep_grey) png_set_strip_16(png);
  png_set_packing(png);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  pixels.height = png_get_image_height(png, info);
  pixels.width = png_get_image_width(png, info);
  pixels.channels = png_get_channels(png, info);
  const int64_t line = pixels.width * pixels.channels * (deep_grey ? 2 : 1);
  if (std::string wrong = WhyNot(pixels, wanted); !wrong.empty() || wanted.size_alone) {
    png_destroy_read_struct(&png, &info, nullptr);
    return wrong;
  }
  pixels.bytes.resize(static_cast<size_t>(pixels.height * line));
  for (int pass = 0; pass < passes; ++pass) {
    for (int64_t y = 0; y < pixels.height; ++y) {
      png_read_row(png, pixels.bytes.data() + y * line, nullptr);
    }
  }
  png_read_end(png, nullptr);
  png_destroy_read_struct(&png, &info, nullptr);
  if (deep_grey) CutOff(pixels);
  return "";
}

// Other formats of files that have the name of an image.
constexpr struct {
  size_t at;
  std::string_view mark, what;
} kOthers[] = {{0, "GIF8", "GIF"},        {8, "WEBP", "WebP"},       {0, "BM", "BMP"},
               {0, {"II*\0", 4}, "TIFF"}, {0, {"MM\0*", 4}, "TIFF"}, {4, "ftypavi", "AVIF"},
               {4, "ftyp", "HEIF"},       {4, "jP  ", "JPEG 2000"},  {0, "%PDF-", "PDF"},
               {0, "<", "HTML or XML"}};

std::string Decode(std::string_view file, const Wanted& wanted, ImagePixels& pixels) {
  if (file.starts_with("\xff\xd8")) return DecodeJpeg(file, wanted, pixels);
  if (file.starts_with("\x89PNG")) return DecodePng(file, wanted, pixels);
  if (IsLfsPointer(file)) return kLfsPointer;
  std::string no = "is no JPEG and no PNG";
  for (const auto& [at, mark, what] : kOthers) {
    if (file.size() < at || !file.substr(at).starts_with(mark)) continue;
    return no + ", but " + std::string(what) + ": convert it, or leave it out";
  }
  return no;
}

// Whether the file ends as its format does. Behind the end there may be anything.
bool EndsWhole(std::string_view file) {
  return file.starts_with("\xff\xd8") ? file.ends_with("\xff\xd9")
                                      : file.ends_with("IEND\xae\x42\x60\x82");
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

bool CanConvert(int64_t from, int64_t to) {
  return from == to || (to == 3 && from >= 1 && from <= 4) || (to == 1 && from == 2);
}

std::string WrongChannels(int64_t from, int64_t to) {
  return "has " + std::to_string(from) + (from == 1 ? " channel" : " channels") +
         ", but the model reads " + std::to_string(to) + ": give model.num_channels, or convert it";
}

void ConvertChannels(int64_t to, ImagePixels& pixels) {
  const int64_t from = pixels.channels;
  if (from == to) return;
  const auto n = static_cast<size_t>(pixels.height * pixels.width);
  std::vector<uint8_t> bytes(n * static_cast<size_t>(to));
  for (size_t i = 0; i < n; ++i) {
    const uint8_t* const pixel = pixels.bytes.data() + i * static_cast<size_t>(from);
    for (size_t c = 0; c < static_cast<size_t>(to); ++c) {
      bytes[i * static_cast<size_t>(to) + c] = pixel[from < 3 ? 0 : c];
    }
  }
  pixels.bytes = std::move(bytes);
  pixels.channels = to;
}

std::string DecodeImage(std::string_view file, ImagePixels& pixels, int64_t channels) {
  std::string wrong = Decode(file, {channels, false}, pixels);
  if (wrong.empty() && channels > 0) ConvertChannels(channels, pixels);
  return wrong;
}

std::string LookAtImage(std::string_view file, ImagePixels& pixels, int64_t channels) {
  std::string wrong = Decode(file, {channels, true}, pixels);
  if (wrong.empty() && !EndsWhole(file)) {
    ImagePixels all;
    wrong = Decode(file, {channels, false}, all);
  }
  if (channels > 0) pixels.channels = channels;
  return wrong;
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
