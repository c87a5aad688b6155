#include "trainer/data/images/image_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/permutation.h"

namespace fsdp {
namespace {

std::vector<double> WeightsOf(const std::vector<ImageSource>& sources) {
  std::vector<double> weights;
  for (const ImageSource& source : sources) weights.push_back(source.weight);
  return weights;
}

const BatchSpec& Checked(const BatchSpec& spec) {
  if (!IsOfImages(spec)) throw std::invalid_argument("[ImageRows] a model of something else");
  return spec;
}

}  // namespace

ImageSource ImageRows::Whole(std::shared_ptr<const ImageStore> store, const BatchSpec& spec) {
  ImageSource all;
  const int64_t classes = spec.inputs[kLabel].values;
  for (int64_t i = 0; i < store->size(); ++i) {
    if (store->Label(i) < classes) continue;
    const std::vector<std::string>& names = store->classes();
    throw DataError(
        "data: " + store->Where(i) + ": its label is " + std::to_string(store->Label(i)) +
        (names.empty() ? ""
                       : ", `" + PrintableName(names[static_cast<size_t>(store->Label(i))]) +
                             "` of " + Counted(std::ssize(names), "folder")) +
        ", but the model has " + std::to_string(classes) + " classes: give model.num_labels");
  }
  all.images.resize(static_cast<size_t>(store->size()));
  std::iota(all.images.begin(), all.images.end(), 0);
  all.store = std::move(store);
  return all;
}

ImageRows::Parts ImageRows::HoldOut(const ImageSource& all, double fraction) {
  const auto n = std::ssize(all.images);
  const auto held = static_cast<int64_t>(std::floor(static_cast<double>(n) * fraction));
  if (held == 0 || held == n) {
    throw DataError("data: " + all.store->Describe() + ": " + Counted(n, "image") +
                    " cannot be held out by data.valid.fraction: nothing would be left on one "
                    "side");
  }
  Parts parts{all, all};
  parts.train.images.clear();
  parts.valid.images.clear();
  const Permutation order(n, HashBytes("data.valid.fraction"), /*tweak=*/0);
  for (int64_t i = 0; i < n; ++i) {
    (order(i) < n - held ? parts.train : parts.valid)
        .images.push_back(all.images[static_cast<size_t>(i)]);
  }
  return parts;
}

ImageRows::ImageRows(const BatchSpec& spec, std::vector<ImageSource> sources, bool shuffle,
                     bool draws, uint64_t seed)
    : spec_(Checked(spec)),
      side_(spec.inputs[kPixels].sample[0]),
      channels_(spec.inputs[kPixels].sample[2]),
      sources_(std::move(sources)),
      mixture_(WeightsOf(sources_), seed),
      shuffle_(shuffle),
      draws_(draws),
      seed_(seed) {}

void ImageRows::CheckViews(const Batch& out, int64_t rows) const {
  RequireBatch("ImageRows", spec_, rows, out);
}

std::pair<const ImageSource&, int64_t> ImageRows::PlaceOf(int64_t sample) const {
  const Mixture::Place place = mixture_(sample);
  const auto k = static_cast<size_t>(place.source);
  const ImageSource& source = sources_[k];
  const auto n = std::ssize(source.images);
  const int64_t epoch = place.sample / n, at = place.sample % n;
  // The first source's order is that of the seed itself, the others' are unrelated to it.
  const uint64_t order = k == 0 ? seed_ : HashBytes("data.mixture.source", seed_ + k);
  const int64_t which = shuffle_ ? Permutation(n, order, static_cast<uint64_t>(epoch))(at) : at;
  return {source, source.images[static_cast<size_t>(which)]};
}

ShownSample ImageRows::Show(int64_t sample, const Batch& row) const {
  const auto [source, i] = PlaceOf(sample);
  ImagePixels image;
  source.store->Read(i, image);
  const int32_t label = row.inputs[kLabel].As<int32_t>()[0];
  const std::vector<std::string>& names = source.store->classes();
  const auto of = [](int64_t width, int64_t height) {
    return std::to_string(width) + " x " + std::to_string(height);
  };
  return {source.store->Where(i),
          {},
          {{"class", std::to_string(label) +
                         (names.empty() ? "" : ", " + names.at(static_cast<size_t>(label)))},
           {"size", of(image.width, image.height)},
           {"channels", std::to_string(image.channels)},
           {"read as", of(side_, side_)}}};
}

Tally ImageRows::Count(int64_t source) const {
  const ImageSource& all = sources_.at(static_cast<size_t>(source));
  std::set<int32_t> labels;
  for (const int32_t i : all.images) labels.insert(all.store->Label(i));
  return {{"samples", Rows(source)}, {"classes", std::ssize(labels)}};
}

void ImageRows::Fill(int64_t sample, int64_t row, const Batch& out) const {
  const int64_t elements = side_ * side_ * channels_;
  const std::span<float> pixels(out.inputs[kPixels].As<float>() + row * elements,
                                static_cast<size_t>(elements));
  int32_t& label = out.inputs[kLabel].As<int32_t>()[row];
  float& weight = out.inputs[kImageWeight].As<float>()[row];
  if (sample == kNoSample) {
    std::fill(pixels.begin(), pixels.end(), 0.0f);
    label = 0;
    weight = 0;
    return;
  }
  const auto [source, i] = PlaceOf(sample);
  static thread_local ImagePixels image;
  source.store->Read(i, image);
  if (image.channels != channels_) {
    throw DataError("data: " + source.store->Where(i) + ": " +
                    WrongChannels(image.channels, channels_));
  }
  if (const std::string why = WhyNotChanged(image, source.changes, side_); !why.empty()) {
    throw DataError("data: " + source.store->Where(i) + ": " + why);
  }
  const RandomStream draws(seed_, "data.images", static_cast<uint64_t>(sample));
  ChangeImage(image, source.changes, draws_ ? &draws : nullptr, side_, pixels);
  label = source.store->Label(i);
  weight = 1;
}

bool IsOfImages(const BatchSpec& spec) {
  using Role = BatchInput::Role;
  if (spec.inputs.size() != 3 || spec.targets != 1) return false;
  const BatchInput &pixels = spec.inputs[kPixels], &label = spec.inputs[kLabel];
  return pixels.role == Role::kInput && pixels.dtype == DType::kFloat32 &&
         pixels.sample.rank() == 3 && pixels.sample[0] == pixels.sample[1] &&
         label.role == Role::kTarget && label.dtype == DType::kInt32 && label.sample == Shape{} &&
         spec.inputs[kImageWeight].role == Role::kWeight;
}

}  // namespace fsdp
