// Helpers that the layers' files share.
// Tests: tests/trainer/nn/layers_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_LAYER_TOOLS_H_
#define FSDP_TRAIN_TRAINER_NN_LAYER_TOOLS_H_

#include <cstdint>
#include <optional>

#include "trainer/autograd/tape.h"
#include "trainer/nn/parameter.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// The parameter's gradient; nothing if the parameter is frozen.
inline std::optional<View> GradOf(const Parameter& parameter) {
  return parameter.trainable() ? std::optional(parameter.grad()) : std::nullopt;
}

// The device whose kernels run the tape's operations, and so decide their workspaces.
inline DeviceType KernelsOf(const Tape& tape) { return tape.stream().device().kernel_type(); }

// Memory for one operation: `bytes` bytes, perhaps none.
class Workspace {
 public:
  Workspace(Tape& tape, int64_t bytes)
      : memory_(bytes > 0 ? tape.New(Shape{bytes}, DType::kUInt8) : nullptr) {}
  View view() const { return memory_ ? memory_->view() : View(nullptr, DType::kUInt8, Shape{0}); }

 private:
  TensorPtr memory_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_LAYER_TOOLS_H_
