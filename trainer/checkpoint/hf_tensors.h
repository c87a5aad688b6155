// Which tensors a Hugging Face directory holds of a model, and where each lies in its parameters.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_HF_TENSORS_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_HF_TENSORS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/shape.h"
#include "trainer/nn/model.h"

namespace fsdp {

// A model without memory for its parameters, and its parameters by name. In forward order.
class HfTensors {
 public:
  struct Tensor {
    const Parameter* parameter = nullptr;
    const ParameterSlice* slice = nullptr;  // Its name and shape are the tensor's.
  };

  // Throws CheckpointError for a shape that cannot be built.
  explicit HfTensors(const ModelShape& shape);

  const Model& model() const { return *model_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // FSDP_CHECKs that there is one.
  const Parameter& Find(const std::string& parameter) const;

 private:
  std::unique_ptr<Model> model_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, const Parameter*> parameters_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_HF_TENSORS_H_
