// The tensors that a Hugging Face directory holds of a model, and the place of each in its
// parameters.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/view.h"
#include "trainer/nn/buffer.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/weights/bnb_tensor.h"
#include "trainer/weights/merged_weights.h"

namespace fsdp {

class Model;

// Tensors are in forward order, a segment's buffers behind its parameters, embedding tables behind
// all. Adapters are no tensors of such a directory. Keeps a reference to the model.
class HfTensors {
 public:
  struct Table {
    int index = 0;  // Index among the model's tables.
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
    // The dtype in a file whose weights have dtype `weights`: a buffer keeps its own.
    DType dtype(DType weights) const { return buffer ? buffer->dtype() : weights; }
    int64_t bytes(DType weights) const { return shape().NumElements() * SizeOf(dtype(weights)); }
  };

  explicit HfTensors(const Model& model);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  // A parameter of the model, adapter or not; null where there is none.
  const Parameter* Find(const std::string& parameter) const;
  WeightLayout linear_layout() const { return linear_layout_; }  // The model's.

 private:
  std::vector<Tensor> tensors_;
  int tables_ = 0;
  WeightLayout linear_layout_;
  std::unordered_map<std::string, const Parameter*> parameters_;
};

// Tensors of a checkpoint as a safetensors file for others.

// Where their values come from.
struct HfValues {
  // Fills `values` with the elements of a parameter's slice, or of a table, from `begin` on.
  std::function<void(const HfTensors::Tensor&, int64_t begin, std::span<float> values)> read;
  std::function<void(const ModelBuffer&, int64_t begin, const View& values)> read_buffer;
  // Slices that are not read but written in four bits, by name.
  std::map<std::string, BnbParts> coded = {};
};
HfValues ValuesOf(MergedWeights& weights);  // Keeps a reference.

// Bytes of the tensor, coded or in `dtype`.
int64_t BytesOf(const HfTensors::Tensor& tensor, DType dtype, const HfValues& values);

// Writes these tensors, each whole, in their order, to the file `path`, in `dtype`: fp32, bf16 or
// fp16; buffers in their own. Values are rounded to nearest, even; a value too large for the dtype
// is refused. `wrote` is called with bytes of tensors as they are written. Holds 8 MiB of elements.
// Throws CheckpointError.
void WriteHfTensors(const std::string& path, std::span<const HfTensors::Tensor> tensors,
                    DType dtype, const HfValues& values,
                    const std::function<void(int64_t bytes)>& wrote);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSORS_H_
