#include "trainer/data/images/image_changes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "trainer/data/images/image_pixels.h"

namespace fsdp {
namespace {

// Places in an image's stream of random numbers.
enum Draw : uint64_t { kFlip, kTop, kLeft, kFirstTry };

// Below `n`, in the middle without draws.
int64_t PlaceBelow(const RandomStream* draws, Draw place, int64_t n) {
  if (draws == nullptr) return (n - 1) / 2;
  return static_cast<int64_t>(draws->Below(place, static_cast<uint64_t>(n)));
}

ImageBox Middle(const ImagePixels& image, int64_t height, int64_t width) {
  return {(image.height - height) / 2, (image.width - width) / 2, height, width};
}

// torchvision's RandomResizedCrop.get_params(), with draws of its own.
ImageBox RandomBox(const ImagePixels& image, const RandomStream& draws) {
  constexpr double kLeast = 0.08, kNarrow = 3.0 / 4, kWide = 4.0 / 3;
  constexpr int kTries = 10, kDrawsOfATry = 4;
  const double area = static_cast<double>(image.height) * static_cast<double>(image.width);
  for (int i = 0; i < kTries; ++i) {
    const uint64_t at = kFirstTry + static_cast<uint64_t>(i) * kDrawsOfATry;
    const double part = area * (kLeast + (1 - kLeast) * draws.Uniform(at));
    const double log_ratio =
        std::log(kNarrow) + (std::log(kWide) - std::log(kNarrow)) * draws.Uniform(at + 1);
    const double ratio = std::exp(log_ratio);
    const auto width = static_cast<int64_t>(std::llround(std::sqrt(part * ratio)));
    const auto height = static_cast<int64_t>(std::llround(std::sqrt(part / ratio)));
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    return {
        static_cast<int64_t>(draws.Below(at + 2, static_cast<uint64_t>(image.height - height + 1))),
        static_cast<int64_t>(draws.Below(at + 3, static_cast<uint64_t>(image.width - width + 1))),
        height, width};
  }
  const double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  const auto of = [](int64_t side, double factor) {
    return static_cast<int64_t>(std::llround(static_cast<double>(side) * factor));
  };
  if (ratio < kNarrow) return Middle(image, of(image.width, 1 / kNarrow), image.width);
  if (ratio > kWide) return Middle(image, image.height, of(image.height, kWide));
  return Middle(image, image.height, image.width);
}

// The new length of `side` when the image's shorter side has become `size` pixels.
int64_t Scaled(const ImagePixels& image, int64_t side, int64_t size) {
  return side * size / std::min(image.height, image.width);
}

// Resizes it so that its shorter side has `size` pixels; `out` is what is left of the rest.
const ImagePixels& Shorter(const ImagePixels& image, int64_t size, ImagePixels& out) {
  if (std::min(image.height, image.width) == size) return image;
  ResizeImage(image, {0, 0, image.height, image.width}, Scaled(image, image.height, size),
              Scaled(image, image.width, size), out);
  return out;
}

}  // namespace

std::string WhyNotChanged(const ImagePixels& image, const ImageChanges& changes, int64_t side) {
  if (changes.crop != Crop::kCenter && changes.crop != Crop::kRandom) return "";
  const int64_t size = changes.size > 0 ? changes.size : side;
  const int64_t height = Scaled(image, image.height, size),
                width = Scaled(image, image.width, size);
  if (height * width <= kMaxImagePixels) return "";
  return "has " + std::to_string(image.height) + " x " + std::to_string(image.width) +
         " pixels, of which a shorter side of " + std::to_string(size) + " would make " +
         std::to_string(height) + " x " + std::to_string(width) +
         ", too many: leave it out, or cut it";
}

void ChangeImage(const ImagePixels& image, const ImageChanges& changes, const RandomStream* draws,
                 int64_t side, std::span<float> pixels) {
  static thread_local ImagePixels resized, square;
  const ImagePixels* from = &image;
  ImageBox box{0, 0, image.height, image.width};
  if (changes.crop == Crop::kRandomResized) {
    const int64_t shorter = std::min(image.height, image.width);
    box = draws != nullptr ? RandomBox(image, *draws) : Middle(image, shorter, shorter);
  } else if (changes.crop != Crop::kNone) {
    from = &Shorter(image, changes.size > 0 ? changes.size : side, resized);
    const RandomStream* const anywhere = changes.crop == Crop::kRandom ? draws : nullptr;
    box = {PlaceBelow(anywhere, kTop, from->height - side + 1),
           PlaceBelow(anywhere, kLeft, from->width - side + 1), side, side};
  }
  ResizeImage(*from, box, side, side, square);
  const bool turned = changes.flip && draws != nullptr && draws->Below(kFlip, 2) == 1;
  const int64_t channels = image.channels;
  const auto of = [](const std::vector<double>& values, int64_t c) {
    return values[values.size() > 1 ? static_cast<size_t>(c) : 0];
  };
  for (int64_t c = 0; c < channels; ++c) {
    const double mean = of(changes.mean, c), std = of(changes.std, c);
    float value[256];
    for (int byte = 0; byte < 256; ++byte) {
      value[byte] = static_cast<float>((byte / 255.0 - mean) / std);
    }
    for (int64_t y = 0; y < side; ++y) {
      for (int64_t x = 0; x < side; ++x) {
        const int64_t at = y * side + (turned ? side - 1 - x : x);
        pixels[static_cast<size_t>((y * side + x) * channels + c)] =
            value[square.bytes[static_cast<size_t>(at * channels + c)]];
      }
    }
  }
}

}  // namespace fsdp
