// Errors against float64 of models of tests/fixtures in bf16 and fp16: at most twice as large as
// those of PyTorch's FSDP (tools/reference/README.md, "Precision").
#ifndef FSDP_TRAIN_TESTS_TESTING_PRECISION_H_
#define FSDP_TRAIN_TESTS_TESTING_PRECISION_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/testing/json.h"
#include "tests/testing/reference.h"
#include "trainer/core/dtype.h"

namespace fsdp::testing {

// One setting of fsdp.mixed_precision that PyTorch has too.
struct Precision {
  DType param, grad, reduce;
};

std::string NameOf(const Precision& precision);  // "bf16_fp32_bf16".

// The parameters of tests: a setting and a number of ranks.
using PrecisionWay = std::tuple<Precision, int>;
std::vector<PrecisionWay> WaysOf(DType param);  // With fp32 and `param` for the other two.
std::string WayName(const ::testing::TestParamInfo<PrecisionWay>& info);

class PrecisionReference {
 public:
  // Keeps `reference`; `folder` as Reference was given it.
  PrecisionReference(const Reference& reference, const std::string& folder);

  // Trains with `precision` at `world` ranks and compares the errors of every tensor of step 1's
  // gradients, of the losses of 20 steps of SGD and of AdamW, and of the weights after them: each
  // is at most twice PyTorch's, and their geometric mean is not larger than PyTorch's. After AdamW,
  // one element's first update may go the other way: it is lr g / |g|, whatever g's own error.
  void Hold(const Precision& precision, int world) const;

  // The same of a model with ReLUs, of each running statistic after step 1, and of Adagrad's sums
  // of tables' rows. Its tensors after 20 steps are luck, and step 1's gradients in fp16
  // (tools/reference/README.md): these gradients are not compared. The errors of all weights after
  // a run are one number here, those of all running statistics another, those of all rows of
  // embedding tables a third. Each is at most twice PyTorch's.
  void HoldTogether(const Precision& precision, int world) const;

  // Trains a model with bf16 tables, whose rows are rounded stochastically, as often as PyTorch
  // did, with other draws each time. The mean of each table's rows is at most twice as far from
  // float64's as the mean of PyTorch's.
  void HoldMeanRows(const Precision& precision, int world) const;

  // Trains with fp16's scaler, and a target in some steps that overflows: every scale and every
  // skipped step is PyTorch's, and a skipped step changes nothing.
  void HoldScales(const Precision& precision, int world) const;

  // Trains the runs of first_scales.json, whose scale begins far too high. The skipped steps are
  // those of PyTorch's FSDP2, and each scale is PyTorch's times the largest power of two in the
  // ranks.
  void HoldFirstScales() const;

 private:
  // PyTorch's, by names_; `frame`: fsdp1 or fsdp2.
  std::vector<double> Theirs(const std::string& frame, const Precision& precision, int world) const;
  // reference_.TrainRun() with this precision.
  TinyRun TrainRun(const std::string& name, const Precision& precision, int world) const;
  // ||ours - float64||_2 by names_; for losses the root of their mean square.
  std::vector<double> Errors(const Precision& precision, int world) const;
  double Error(const std::string& name, const std::vector<float>& ours) const;
  int64_t Size(const Precision& precision, const std::string& name) const;

  const Reference& reference_;
  const std::string folder_;
  SafetensorsReader file_;
  const Json settings_;
  const std::vector<std::string> names_;
  const double scale_;  // The loss's, in fp16.
};

// The base of a family's tests: a model of tests/fixtures with one setting.
class PrecisionSuite : public ::testing::TestWithParam<PrecisionWay> {
 protected:
  PrecisionSuite(const std::string& folder, Reference::SetShape set_shape,
                 Reference::RowsOf rows_of = nullptr)
      : reference_(folder, std::move(set_shape), std::move(rows_of)),
        precision_(reference_, folder) {}

  void Hold() const {
    const auto& [precision, world] = GetParam();
    precision_.Hold(precision, world);
  }
  void HoldTogether() const {
    const auto& [precision, world] = GetParam();
    precision_.HoldTogether(precision, world);
  }
  void HoldScales() const {
    const auto& [precision, world] = GetParam();
    precision_.HoldScales(precision, world);
  }

 private:
  const Reference reference_;
  const PrecisionReference precision_;
};

}  // namespace fsdp::testing

// Every setting with 16 bits, for a suite derived from PrecisionSuite.
#define FSDP_INSTANTIATE_PRECISION_TEST(suite)                                                     \
  INSTANTIATE_TEST_SUITE_P(BFloat16, suite,                                                        \
                           ::testing::ValuesIn(::fsdp::testing::WaysOf(::fsdp::DType::kBFloat16)), \
                           ::fsdp::testing::WayName);                                              \
  INSTANTIATE_TEST_SUITE_P(Float16, suite,                                                         \
                           ::testing::ValuesIn(::fsdp::testing::WaysOf(::fsdp::DType::kFloat16)),  \
                           ::fsdp::testing::WayName)

#endif  // FSDP_TRAIN_TESTS_TESTING_PRECISION_H_
