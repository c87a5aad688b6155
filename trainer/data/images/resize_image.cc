#include "trainer/data/images/resize_image.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace fsdp {
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
