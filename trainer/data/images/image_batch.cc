#include "trainer/data/images/image_batch.h"

namespace fsdp {

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
