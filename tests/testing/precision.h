// What PyTorch's FSDP makes of a model of tests/fixtures in bf16 and fp16, as errors against
// float64 (tools/reference/README.md, "Precision"): ours are at most twice as large.
#ifndef FSDP_TRAIN_TESTS_TESTING_PRECISION_H_
#define FSDP_TRAIN_TESTS_TESTING_PRECISION_H_

#include <string>
#include <vector>

#include "tests/testing/reference.h"
#include "trainer/core/dtype.h"

namespace fsdp::testing {

// One setting of fsdp.mixed_precision that PyTorch has too.
struct Precision {
  DType param, reduce;
};

class PrecisionReference {
 public:
  // `reference` is kept; `folder` as it was given to it.
  PrecisionReference(const Reference& reference, const std::string& folder);

  // Trains with `precision` at `world` ranks: of every tensor of step 1's gradients, of the losses
  // of 20 steps of SGD and of AdamW and of the weights after them, the error is at most twice
  // PyTorch's, and over all of them, as a geometric mean, not larger. Of weights after AdamW one
  // element's first update may go the other way: it is lr g / |g|, whatever g's own error.
  void Hold(const Precision& precision, int world) const;

 private:
  // ||ours - float64||_2 by names_; of losses the root of their mean square.
  std::vector<double> Errors(const Precision& precision, int world) const;
  double Error(const std::string& name, const std::vector<float>& ours) const;

  const Reference& reference_;
  SafetensorsReader file_;
  std::vector<std::string> names_;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_PRECISION_H_
