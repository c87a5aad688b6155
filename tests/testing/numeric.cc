#include "tests/testing/numeric.h"

#include <algorithm>
#include <cmath>

#include "trainer/core/check.h"

namespace fsdp {

double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0x1p-23;
    case DType::kBFloat16:
      return 0x1p-7;
    case DType::kFloat16:
      return 0x1p-10;
    default:
      FSDP_CHECK(false) << Name(dtype) << " is exact";
  }
  return 0;
}

double SmallestNormal(DType dtype) { return dtype == DType::kFloat16 ? 0x1p-14 : 0x1p-126; }

double Largest(DType dtype) {
  return (2 - Epsilon(dtype)) * (dtype == DType::kFloat16 ? 0x1p15 : 0x1p127);
}

double RoundTo(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<float>(value);
    case DType::kBFloat16:
      return static_cast<float>(BFloat16(static_cast<float>(value)));
    case DType::kFloat16:
      return static_cast<float>(Float16(static_cast<float>(value)));
    default:
      return std::nearbyint(value);
  }
}

std::vector<double> RoundTo(DType dtype, std::vector<double> values) {
  for (double& v : values) v = RoundTo(dtype, v);
  return values;
}

std::vector<double> Random::Vector(int64_t n, double low, double high) {
  std::vector<double> values(n);
  for (double& v : values) v = RoundTo(dtype_, low + (high - low) * stream_.Uniform(next_++));
  return values;
}

std::vector<double> Random::Integers(int64_t n, int64_t below) {
  std::vector<double> values(n);
  for (double& v : values) v = static_cast<double>(stream_.Below(next_++, below));
  return values;
}

int64_t Random::Integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(stream_.Below(next_++, high - low + 1));
}

double Tolerance(DType dtype, int64_t terms, double scale) {
  return Epsilon(dtype) + scale * static_cast<double>(8 + terms) * Epsilon(DType::kFloat32);
}

::testing::AssertionResult AllNear(const std::vector<double>& got, const std::vector<double>& want,
                                   double tolerance) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, want " << want.size();
  }
  double worst = 0;  // Error over what is allowed.
  size_t where = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double used = std::abs(got[i] - want[i]) / (tolerance * std::max(1.0, std::abs(want[i])));
    if (!(used <= worst)) worst = used, where = i;
    if (std::isnan(used)) break;
  }
  if (worst <= 1) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "element " << where << " of " << want.size() << " is " << got[where] << ", want "
         << want[where] << ": off by " << worst << " times what is allowed";
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  FSDP_CHECK_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace fsdp
