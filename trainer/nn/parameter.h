// A parameter as the model sees it: a name, a shape, and an address only inside a run of its unit.
// Entering a segment binds the address and leaving unbinds it, even if the unit stays gathered. One
// matrix of a product may be several tensors in a Hugging Face file: q, k and v are slices of qkv.
#ifndef FSDP_TRAIN_TRAINER_NN_PARAMETER_H_
#define FSDP_TRAIN_TRAINER_NN_PARAMETER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/weight_code.h"

namespace fsdp {

// The distribution of initial values. Element i of slice s is stddev * RandomStream(seed,
// s.name).Normal(i), or a constant. The value belongs to the element: it depends neither on ranks
// nor on how slices are put together.
struct Init {
  float constant = 0;
  float stddev = 0;
};

// Rows of a parameter, along its first dimension, that are a tensor of their own in a Hugging Face
// file. Initial values, weight decay and files work by slice; the layout and products work by
// parameter.
struct ParameterSlice {
  std::string name;  // As in the Hugging Face file.
  int64_t rows = 0;
  Init init = {};
  bool decay = false;  // Takes part in weight decay.
  // Weights of so many linear layers side by side, each as wide as the others: GPT-2's c_attn,
  // whose rows are inputs, has q, k and v in each row.
  int side_by_side = 1;
  // Set by Parameter.
  int64_t begin = 0;  // The slice's first element in the parameter.
  Shape shape = {};   // [rows, and the parameter's other dimensions].
};

class Parameter;

// An adapter of a linear layer (ops/lora.h). It adds to the columns [column, column + out) of the
// layer's output. Beside the weight of experts a and b hold a slice for each, and `column` is of an
// expert's output.
struct Adapter {
  Parameter *a, *b;  // [experts x rank, in], [experts x out, rank].
  double scale;
  int64_t column;
  double dropout = 0;  // The share of x that A does not see, drawn at a site of its own.
  uint32_t site = 0;
};

class Parameter {
 public:
  // One slice, which is the whole parameter, under the same name.
  Parameter(std::string name, const Shape& shape, Init init, bool decay);
  // `name` is for the layout, and no other parameter's. The slices follow each other and hold all
  // rows, or std::invalid_argument is thrown.
  Parameter(std::string name, const Shape& shape, std::vector<ParameterSlice> slices);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  const std::vector<ParameterSlice>& slices() const { return slices_; }  // At least one.

  // Says that each row has the weights of so many layers (ParameterSlice::side_by_side), which
  // divide its width.
  void HoldsSideBySide(int layers);

  // Says that the weight is read by itself, not by a linear layer: no adapter is put beside it, and
  // it is never kept as records; it is fp32 in every run (KeptInFp32()). A router's.
  void StayPlain() { is_plain_ = true; }
  bool is_plain() const { return is_plain_; }
  // Says that the weight is that of so many linear layers, experts, one behind the other, with
  // equally many slices each.
  void HoldsExperts(int64_t experts);
  int64_t experts() const { return std::max<int64_t>(1, experts_); }
  bool is_of_experts() const { return experts_ > 0; }

  // For the weight of a linear layer; a and b are in the same segment.
  void AddAdapter(const Adapter& adapter);
  const std::vector<Adapter>& adapters() const { return adapters_; }
  bool is_adapter() const { return is_adapter_; }  // Some adapter's a or b.

  // A frozen parameter has no gradient and no optimizer state. Must be called before the layout is
  // made.
  void Freeze() { trainable_ = false; }
  bool trainable() const { return trainable_; }

  // Says that a frozen weight is kept as records (ops/weight_codes.h), a slice behind the other,
  // each from a record's first byte on. Must be called before the layout is made.
  void Encode(WeightCode code);
  WeightCode code() const { return code_; }
  int64_t coded_bytes() const;                            // All slices'; 0 without a code.
  int64_t CodedBegin(const ParameterSlice& slice) const;  // The byte where the slice begins.

  // Views in the dtypes that they are bound with. FSDP_CHECK that the unit is gathered, or has a
  // gradient slot, and that value() is asked for where there is no code, records() where there is.
  ConstView value() const;
  ConstView records() const;  // uint8 [coded_bytes()].
  View grad() const;          // Ops add to it. Only a trainable parameter has one.

  // For the executor: binds views of the parameter's shape, each in its own dtype, or records,
  // valid while the unit stays where it is. Empty views unbind it.
  void Bind(const View& value, const View& grad);

 private:
  std::string name_;
  Shape shape_;
  std::vector<ParameterSlice> slices_;
  std::vector<Adapter> adapters_;
  bool is_adapter_ = false, is_plain_ = false;
  int64_t experts_ = 0;  // 0: it is of none.
  bool trainable_ = true;
  WeightCode code_ = WeightCode::kNone;
  View value_, grad_;
};

// A parameter may be rows [begin, end) of what another model has in one: experts that are gathered
// in pieces. Its name has them in brackets: "x[64:128].weight" of "x.weight". Checkpoints have
// either, and are read as the other.
struct NamedRows {
  std::string whole;
  int64_t begin = 0, end = 0;
};
// `name` itself where the rows are all.
std::string NameOfRows(const std::string& name, int64_t begin, int64_t end, int64_t all);
// Empty for a name without rows.
std::optional<NamedRows> RowsOfName(std::string_view name);
std::string WholeName(const std::string& name);  // Itself, or RowsOfName()'s.

// Records of a slice inside bytes [begin, begin + n) of a coded parameter's, whole records each:
// [record, record + count) of the slice lie at byte `at`.
struct RecordPiece {
  const ParameterSlice* slice = nullptr;
  int64_t record = 0, count = 0, at = 0;
};
std::vector<RecordPiece> RecordPieces(const Parameter& parameter, int64_t begin, int64_t bytes);

// A part of a slice inside a run of a parameter's elements: elements [at, at + count) of the run
// are elements [begin, begin + count) of the slice.
struct SlicePiece {
  const ParameterSlice* slice = nullptr;
  int64_t begin = 0, count = 0, at = 0;
};
// The slices that hold elements [begin, begin + count) of the parameter, in order.
std::vector<SlicePiece> SlicePieces(const Parameter& parameter, int64_t begin, int64_t count);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_PARAMETER_H_
