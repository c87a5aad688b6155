// The matrix of a linear layer's weight, for products.
// Tests: tests/trainer/nn/experts_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_MATRIX_OF_H_
#define FSDP_TRAIN_TRAINER_NN_MATRIX_OF_H_

#include <cstdint>

#include "trainer/autograd/tape.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/weight_codes.h"

namespace fsdp {

// A weight with more than two dimensions, such as a convolution's kernel, as [out, all others].
template <typename AnyView>
AnyView AsMatrix(const AnyView& weight) {
  if (weight.shape.rank() <= 2) return weight;
  const int64_t out = weight.shape[0];
  return weight.Reshape(Shape{out, weight.NumElements() / out});
}

// A weight in the form that products take. One that is kept as records is decoded, into memory that
// lives as long as this object.
class MatrixOf {
 public:
  MatrixOf(Tape& tape, const Parameter& weight) {
    if (weight.code() == WeightCode::kNone) {
      value_ = AsMatrix(weight.value());
      return;
    }
    decoded_ = tape.New(weight.shape(), tape.activations());
    const View all = decoded_->view().Reshape(Shape{weight.shape().NumElements()});
    const ConstView records = weight.records();
    for (const ParameterSlice& slice : weight.slices()) {
      const int64_t n = slice.shape.NumElements();
      DecodeWeight(tape.stream(),
                   records.Slice(weight.CodedBegin(slice), CodedBytes(weight.code(), n)),
                   weight.code(), all.Slice(slice.begin, n));
    }
    value_ = decoded_->view();
  }
  operator ConstView() const { return value_; }  // NOLINT(google-explicit-constructor)

 private:
  TensorPtr decoded_;
  ConstView value_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_MATRIX_OF_H_
