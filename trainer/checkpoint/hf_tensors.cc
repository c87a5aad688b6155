#include "trainer/checkpoint/hf_tensors.h"

#include <stdexcept>

#include "models/make_model.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"

namespace fsdp {

HfTensors::HfTensors(const ModelShape& shape) {
  try {
    model_ = MakeModel(shape);
  } catch (const std::invalid_argument& error) {
    throw CheckpointError(std::string("the model cannot be built: ") + error.what());
  }
  for (const ModelSegment& segment : model_->segments()) {
    for (const Parameter* parameter : segment.parameters) {
      parameters_[parameter->name()] = parameter;
      for (const ParameterSlice& slice : parameter->slices()) {
        tensors_.push_back({parameter, &slice});
      }
    }
  }
}

const Parameter& HfTensors::Find(const std::string& parameter) const {
  const auto it = parameters_.find(parameter);
  FSDP_CHECK(it != parameters_.end()) << parameter;
  return *it->second;
}

}  // namespace fsdp
