// Muon's iteration in float64, by whole products: nothing is symmetric by construction.
#ifndef FSDP_TRAIN_TESTS_TESTING_NEWTON_SCHULZ_ORACLE_H_
#define FSDP_TRAIN_TESTS_TESTING_NEWTON_SCHULZ_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace fsdp {

using Matrix = std::vector<double>;  // Row by row.

// a: [m, k], b: [k, n].
inline Matrix MatrixProduct(const Matrix& a, const Matrix& b, int64_t m, int64_t k, int64_t n) {
  Matrix c(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

inline Matrix Transposed(const Matrix& a, int64_t m, int64_t n) {
  Matrix t(a.size());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) t[j * m + i] = a[i * n + j];
  }
  return t;
}

// x: [m, n], any of the two the larger.
inline Matrix NewtonSchulzOracle(Matrix x, int64_t m, int64_t n, int steps = 5) {
  if (m > n) return Transposed(NewtonSchulzOracle(Transposed(x, m, n), n, m, steps), n, m);
  constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::max(std::sqrt(squares), 1e-7);
  for (int step = 0; step < steps; ++step) {
    const Matrix gram = MatrixProduct(x, Transposed(x, m, n), m, n, m);
    Matrix factor = MatrixProduct(gram, gram, m, m, m);
    for (size_t i = 0; i < factor.size(); ++i) factor[i] = kB * gram[i] + kC * factor[i];
    const Matrix more = MatrixProduct(factor, x, m, m, n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = kA * x[i] + more[i];
  }
  return x;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_NEWTON_SCHULZ_ORACLE_H_
