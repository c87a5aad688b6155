// Rows of an image and its label, for models that sort images into classes. A row is a pure
// function of seed and sample: its random draws are the same on any number of ranks.
// Tests: tests/trainer/data/images/image_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_ROWS_H_
#define FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/images/image_changes.h"
#include "trainer/data/images/image_store.h"
#include "trainer/data/mixture.h"
#include "trainer/data/row_source.h"

namespace fsdp {

// Images of a store, in the order of a run.
struct ImageSource {
  std::shared_ptr<const ImageStore> store;
  std::vector<int32_t> images;
  double weight = 1;
  ImageChanges changes = {};
};

class ImageRows final : public RowSource {
 public:
  // All images. Throws DataError for a label outside the classes of `spec`.
  static ImageSource Whole(std::shared_ptr<const ImageStore> store, const BatchSpec& spec);
  // The last floor(images x fraction) of an order drawn once for all runs, and the others, both in
  // the store's. Throws DataError if one side would be empty.
  struct Parts {
    ImageSource train, valid;
  };
  static Parts HoldOut(const ImageSource& all, double fraction);

  // `draws`: crops and flips are drawn, in a training; otherwise crops are in the middle.
  // IsOfImages(spec).
  ImageRows(const BatchSpec& spec, std::vector<ImageSource> sources, bool shuffle, bool draws,
            uint64_t seed);

  const Mixture& mixture() const override { return mixture_; }
  int64_t sources() const override { return std::ssize(sources_); }
  int64_t Rows(int64_t source) const override {
    return std::ssize(sources_.at(static_cast<size_t>(source)).images);
  }
  std::string Describe() const override { return sources_[0].store->Describe(); }
  void CheckViews(const Batch& out, int64_t rows) const override;
  // Throws DataError for an image that does not decode, has other channels, or is smaller than a
  // crop.
  void Fill(int64_t sample, int64_t row, const Batch& out) const override;
  int64_t Targets(int64_t begin, int64_t end) const override { return end - begin; }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has no samples"; }
  ShownSample Show(int64_t sample, const Batch& row) const override;
  Tally Count(int64_t source) const override;

 private:
  std::pair<const ImageSource&, int64_t> PlaceOf(int64_t sample) const;  // An image of its store.

  const BatchSpec spec_;
  const int64_t side_, channels_;
  const std::vector<ImageSource> sources_;
  const Mixture mixture_;
  const bool shuffle_, draws_;
  const uint64_t seed_;
};

// The inputs of a model that sorts images into classes, in this order: pixels, fp32 [side, side,
// channels]; a label, int32; a weight.
enum ImageInput : size_t { kPixels, kLabel, kImageWeight };

// Whether these are a model's inputs.
bool IsOfImages(const BatchSpec& spec);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_ROWS_H_
