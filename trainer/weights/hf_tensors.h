// Which tensors a Hugging Face directory holds of a model, and where each lies in its parameters.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/nn/model.h"

namespace fsdp {

// In forward order. Adapters are no tensors of their own there. Refers to the model.
class HfTensors {
 public:
  struct Tensor {
    const Parameter* parameter = nullptr;
    const ParameterSlice* slice = nullptr;  // Its name and shape are the tensor's.
  };

  explicit HfTensors(const Model& model);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  // A parameter of the model, adapter or not; null where there is none.
  const Parameter* Find(const std::string& parameter) const;

 private:
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, const Parameter*> parameters_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_
