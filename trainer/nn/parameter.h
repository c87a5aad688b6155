// A parameter as the model sees it: a name, a shape, and an address only while its unit is
// gathered. One matrix for the product may be several tensors to everybody else: q, k and v are
// slices of qkv.
#ifndef FSDP_TRAIN_TRAINER_NN_PARAMETER_H_
#define FSDP_TRAIN_TRAINER_NN_PARAMETER_H_

#include <string>
#include <vector>

#include "trainer/core/view.h"

namespace fsdp {

// The distribution of initial values. Element i of the slice s is stddev * RandomStream(seed,
// s.name).Normal(i), or a constant: it belongs to the element, not to a rank, and not to how slices
// are put together.
struct Init {
  float constant = 0;
  float stddev = 0;
};

// Rows of a parameter, along its first dimension, that are a tensor of their own in a Hugging Face
// file. Initial values, weight decay and files go by slices; layout and products by parameters.
struct ParameterSlice {
  std::string name;  // As in the Hugging Face file.
  int64_t rows = 0;
  Init init = {};
  bool decay = false;  // Takes part in weight decay.
  // Set by Parameter.
  int64_t begin = 0;  // Of the parameter's elements, the slice's first.
  Shape shape = {};   // [rows, and the parameter's other dimensions].
};

class Parameter;

// A weight in the form that a product takes it in: value times scale.
struct Weight {
  ConstView value;
  ConstView scale = {};  // Empty: 1.
};

// What is added to the columns [column, column + b's rows) of the output of a linear layer
// (ops/lora.h).
struct Adapter {
  Parameter *a, *b;
  float scale;
  int64_t column;
};

class Parameter {
 public:
  // One slice: the whole, under the same name.
  Parameter(std::string name, const Shape& shape, Init init, bool decay);
  // `name`: for the layout, and no other parameter's. The slices follow each other and hold all
  // rows: std::invalid_argument otherwise.
  Parameter(std::string name, const Shape& shape, std::vector<ParameterSlice> slices);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  const std::vector<ParameterSlice>& slices() const { return slices_; }  // At least one.

  // Of a linear layer's weight; a and b are in the same segment.
  void AddAdapter(const Adapter& adapter);
  const std::vector<Adapter>& adapters() const { return adapters_; }
  bool is_adapter() const { return is_adapter_; }  // Some adapter's a or b.

  // A frozen parameter has no gradient and no optimizer state. Called before the layout is made.
  void Freeze() { trainable_ = false; }
  bool trainable() const { return trainable_; }

  // Of the dtypes that they are bound with. FSDP_CHECK that the unit is gathered, or has a gradient
  // slot.
  ConstView value() const;
  View grad() const;  // Ops add to it. Of a trainable parameter.
  Weight weight() const { return {value()}; }

  // For the executor: views of the parameter's shape, each in a dtype of its own; empty ones end
  // it. They stay while the unit is where it is.
  void Bind(const View& value, const View& grad);

 private:
  std::string name_;
  Shape shape_;
  std::vector<ParameterSlice> slices_;
  std::vector<Adapter> adapters_;
  bool is_adapter_ = false;
  bool trainable_ = true;
  View value_, grad_;
};

// Elements [at, at + count) of a run of a parameter's elements: elements [begin, begin + count) of
// the slice.
struct SlicePiece {
  const ParameterSlice* slice = nullptr;
  int64_t begin = 0, count = 0, at = 0;
};
// The slices that elements [begin, begin + count) of the parameter lie in, in order.
std::vector<SlicePiece> SlicePieces(const Parameter& parameter, int64_t begin, int64_t count);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_PARAMETER_H_
