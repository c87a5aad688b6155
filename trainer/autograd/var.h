// Values on a tape (tape.h), and what backward keeps of them.
// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_VAR_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_VAR_H_

#include <memory>
#include <utility>

#include "trainer/core/view.h"
#include "trainer/runtime/allocator.h"

namespace fsdp {

class Tape;

// A tensor that a backward node may need. It may have been dropped and be made again on demand.
class Saved {
 public:
  explicit Saved(TensorPtr tensor) : tensor_(std::move(tensor)) {}
  const View& Get();

 private:
  friend class Tape;
  struct Recipe;  // How to make it, and what is made with it, again.

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
  std::shared_ptr<TensorPtr> grad;  // Null without a tape that records. Of the value's dtype.
  Shape shape = {};
  DType dtype = DType::kFloat32;
  // Where the value is gelu(u) and was made together with u: whoever multiplies it may add to the
  // gradient of u at once, in place of its own.
  std::shared_ptr<const Var> gelu_of = nullptr;
  // The last segment that reads it, where several do; -1: one does. What is offloaded of it leaves
  // with that segment, once, and returns before its backward.
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
