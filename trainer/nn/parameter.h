// A parameter as the model sees it: a name, a shape, and an address only while its unit is
// gathered.
#ifndef FSDP_TRAIN_TRAINER_NN_PARAMETER_H_
#define FSDP_TRAIN_TRAINER_NN_PARAMETER_H_

#include <string>

#include "trainer/core/view.h"

namespace fsdp {

// The distribution of initial values. Element i of parameter p is stddev * RandomStream(seed,
// p.name).Normal(i), or a constant: it belongs to the element, not to a rank.
struct Init {
  float constant = 0;
  float stddev = 0;
};

class Parameter {
 public:
  // `name` as in the Hugging Face file. `decay`: takes part in weight decay.
  Parameter(std::string name, const Shape& shape, Init init, bool decay)
      : name_(std::move(name)), shape_(shape), init_(init), decay_(decay) {}
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  const Init& init() const { return init_; }
  bool decay() const { return decay_; }

  // FSDP_CHECK that the unit is gathered, or has a gradient slot.
  ConstView value() const;
  View grad() const;  // Ops add to it.

  // For the executor; null ends it.
  void BindValue(std::byte* data) { value_ = data; }
  void BindGrad(std::byte* data) { grad_ = data; }

 private:
  std::string name_;
  Shape shape_;
  Init init_;
  bool decay_;
  std::byte* value_ = nullptr;
  std::byte* grad_ = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_PARAMETER_H_
