#include "trainer/nn/parameter.h"

#include "trainer/core/check.h"

namespace fsdp {

ConstView Parameter::value() const {
  FSDP_CHECK(value_ != nullptr) << name_ << " is used while its unit is not gathered";
  return {value_, DType::kFloat32, shape_};
}

View Parameter::grad() const {
  FSDP_CHECK(grad_ != nullptr) << name_ << " is given a gradient outside its unit's backward";
  return {grad_, DType::kFloat32, shape_};
}

}  // namespace fsdp
