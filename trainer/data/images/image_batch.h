// Tests: tests/trainer/data/images/image_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_BATCH_H_
#define FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_BATCH_H_

#include <cstddef>

#include "trainer/core/batch.h"

namespace fsdp {

// The inputs of a model that sorts images into classes, in this order: pixels, fp32 [side, side,
// channels]; a label, int32; a weight.
enum ImageInput : size_t { kPixels, kLabel, kImageWeight };

// Whether these are a model's inputs.
bool IsOfImages(const BatchSpec& spec);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_BATCH_H_
