#include "trainer/data/clicks/click_store.h"

namespace fsdp {

// The range of ids is what is drawn for them: a file's may have any words.
BatchSpec ClickInputs(int64_t columns, int64_t slots) {
  using Role = BatchInput::Role;
  constexpr int64_t kWords = int64_t{1} << 31;
  return {{{"dense", DType::kFloat32, Shape{columns}},
           {"ids", DType::kInt32, Shape{slots, 2}, Role::kInput, kWords},
           {"label", DType::kFloat32, Shape{}, Role::kTarget},
           {"weight", DType::kFloat32, Shape{}, Role::kWeight}}};
}

bool IsOfClicks(const BatchSpec& spec) {
  if (spec.inputs.size() != 4) return false;
  const Shape &dense = spec.inputs[kDense].sample, &ids = spec.inputs[kIds].sample;
  return dense.rank() == 1 && ids.rank() == 2 && spec == ClickInputs(dense[0], ids[0]);
}

}  // namespace fsdp
