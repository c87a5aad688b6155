// Numbers for tests: random inputs, derivatives by differences, and how far a result may be off.
#ifndef FSDP_TRAIN_TESTS_TESTING_NUMERIC_H_
#define FSDP_TRAIN_TESTS_TESTING_NUMERIC_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/philox.h"

namespace fsdp {

double Epsilon(DType dtype);  // Spacing of the floating point numbers from 1 up.
double SmallestNormal(DType dtype);
double Largest(DType dtype);                // The largest finite number.
double RoundTo(DType dtype, double value);  // To the nearest value of dtype.
std::vector<double> RoundTo(DType dtype, std::vector<double> values);

// Inputs, rounded to dtype, so that oracle and kernel see equal numbers. Successive calls go on in
// one Philox stream: a test is the same in every run and on every machine.
class Random {
 public:
  Random(uint64_t seed, DType dtype) : stream_(seed, "test"), dtype_(dtype) {}

  std::vector<double> Vector(int64_t n, double low = -1, double high = 1);  // Uniform.
  std::vector<double> Integers(int64_t n, int64_t below);                   // In [0, below).
  int64_t Integer(int64_t low, int64_t high);                               // In [low, high].

 private:
  RandomStream stream_;
  DType dtype_;
  uint64_t next_ = 0;
};

// The error allowed to a result that is a sum of up to `terms` products of operands of order one,
// relative to max(1, |result|).
//
// Let u = Epsilon(fp32) / 2, the error of one rounding. Adding n products x y of independent
// operands, uniform in [-1, 1], makes partial sums s_k with E s_k^2 = k / 9. Each addition's error
// is at most u |s_k|, of random sign: the sum's error has a standard deviation of at most
// u sqrt(sum_k k / 9) = u n / sqrt(18) < u n / 4, for the slowest order there is, one after the
// other. n Epsilon = 2 n u is eight of them. The first term is the rounding of the result to its
// dtype; eight more fp32 roundings pay for the fixed number of operations around the sum (a
// reciprocal, a square root, exp to 1 ulp, a scale, the addition to what was there).
//
// It is derived, so it is not to be tuned: a result that needs more is wrong, or its operands are
// not of order one: the test should scale them, or say of which order (`scale`) they are.
double Tolerance(DType dtype, int64_t terms, double scale = 1);

// |got[i] - want[i]| <= tolerance * max(1, |want[i]|) for every i, else the worst element and its
// distance. NaN is never near. Use: EXPECT_TRUE(AllNear(got, want, Tolerance(dtype, cols))).
::testing::AssertionResult AllNear(const std::vector<double>& got, const std::vector<double>& want,
                                   double tolerance);

double Dot(const std::vector<double>& a, const std::vector<double>& b);

// d loss / d x by central differences, for a float64 oracle: a loss of order one gives about nine
// digits (h^2 of the third derivative, 1e-16 / h of rounding). `loss` maps a vector to a double.
template <typename Loss>
std::vector<double> NumericGradient(const Loss& loss, std::vector<double> x, double h = 1e-5) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double above = loss(x);
    x[i] = at - h;
    gradient[i] = (above - loss(x)) / (2 * h);
    x[i] = at;
  }
  return gradient;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_NUMERIC_H_
