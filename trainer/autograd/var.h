// Values on a tape (tape.h), and the parts of them that backward keeps.
// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_VAR_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_VAR_H_

#include <memory>
#include <utility>

#include "trainer/core/view.h"
#include "trainer/runtime/allocator.h"

namespace fsdp {

class Tape;

// A tensor that a backward node may need. It may have been dropped: then it is made again on
// demand.
class Saved {
 public:
  explicit Saved(TensorPtr tensor) : tensor_(std::move(tensor)) {}
  const View& Get();

 private:
  friend class Tape;
  struct Recipe;  // How to make the value again, and which values are made with it.

  TensorPtr tensor_;
  std::shared_ptr<const Recipe> recipe_;
};
using SavedPtr = std::shared_ptr<Saved>;

// A value on the tape: its tensor, and the place where its gradient is summed.
struct Var {
  Var() = default;  // Nothing: the input of the first segment.
  Var(const TensorPtr& tensor, std::shared_ptr<TensorPtr> grad)
      : value(std::make_shared<Saved>(tensor)),
        grad(std::move(grad)),
        shape(tensor->view().shape),
        dtype(tensor->view().dtype) {}

  SavedPtr value;                   // Null: nothing.
  std::shared_ptr<TensorPtr> grad;  // Has the value's dtype. Null without a tape that records.
  Shape shape = {};
  DType dtype = DType::kFloat32;
  // Set where the value is gelu(u) and was computed together with u. The op that multiplies the
  // value may then add to the gradient of u directly, instead of to the value's gradient.
  std::shared_ptr<const Var> gelu_of = nullptr;
  // The last segment that reads the value, where several do; -1: one segment does. An offloaded
  // value leaves the device once, with that segment, and returns before its backward.
  int last_reader = -1;

  const View& view() const { return value->Get(); }
  Var ReadUntil(int segment) const {
    Var var = *this;
    var.last_reader = segment;
    return var;
  }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_VAR_H_
