// GELU by its tanh approximation, in float64, as x times a sigmoid: 1 + tanh cancels for negative
// x.
#ifndef FSDP_TRAIN_TESTS_TRAINER_OPS_GELU_ORACLE_H_
#define FSDP_TRAIN_TESTS_TRAINER_OPS_GELU_ORACLE_H_

#include <cmath>

namespace fsdp {

inline double GeluSigmoid(double x) {
  return 1 / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double GeluOracle(double x) { return x * GeluSigmoid(x); }
inline double GeluSlope(double x) {
  const double s = GeluSigmoid(x);
  return s + 2 * x * s * (1 - s) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_OPS_GELU_ORACLE_H_
