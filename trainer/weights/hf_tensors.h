// Which tensors a Hugging Face directory holds of a model, and where each lies in its parameters.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/nn/model.h"

namespace fsdp {

// In forward order, a segment's buffers behind its parameters, embedding tables behind all.
// Adapters are no tensors of their own there. Refers to the model.
class HfTensors {
 public:
  struct Table {
    int index = 0;  // Of the model's tables.
    std::string name;
    Shape shape;  // [rows, width].
  };
  // Either a parameter's slice, a buffer or a table.
  struct Tensor {
    const Parameter* parameter = nullptr;
    const ParameterSlice* slice = nullptr;
    const ModelBuffer* buffer = nullptr;
    std::shared_ptr<const Table> table = nullptr;

    const std::string& name() const {
      return table ? table->name : buffer ? buffer->name() : slice->name;
    }
    const Shape& shape() const {
      return table ? table->shape : buffer ? buffer->shape() : slice->shape;
    }
    // In a file of weights of `weights`: a buffer keeps its own.
    DType dtype(DType weights) const { return buffer ? buffer->dtype() : weights; }
    int64_t bytes(DType weights) const { return shape().NumElements() * SizeOf(dtype(weights)); }
  };

  explicit HfTensors(const Model& model);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  // A parameter of the model, adapter or not; null where there is none.
  const Parameter* Find(const std::string& parameter) const;

 private:
  std::vector<Tensor> tensors_;
  int tables_ = 0;
  std::unordered_map<std::string, const Parameter*> parameters_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_
