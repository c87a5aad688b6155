// The tail of the standard normal distribution: the constants that CPU and CUDA kernels multiply
// with.
//   Phi(-a) = e^(-a^2 / 2) t P(t),  t = 1 / (1 + kScale a),  P of degree 9, a in [0, 14.5]
// The form is that of Hastings (1955; Abramowitz and Stegun 7.1.26), with coefficients of our own:
// the minimax polynomial of the relative error, by Remez exchanges in 40 digits. Its error is
// 3.5e-9 before the coefficients are rounded to fp32. Beyond 14.5 Phi(-a) is below all numbers of
// fp32.
// Tests: tests/trainer/ops/vector_math_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_NORMAL_TAIL_H_
#define FSDP_TRAIN_TRAINER_OPS_NORMAL_TAIL_H_

namespace fsdp {

struct NormalTail {
  static constexpr float kScale = 0.3f;
  static constexpr float kP0 = 0.1196866896f, kP1 = 0.1195718185f, kP2 = 0.1102353818f,
                         kP3 = 0.07838987329f, kP4 = 0.0961561198f, kP5 = -0.07942204567f,
                         kP6 = 0.191782662f, kP7 = -0.2282121004f, kP8 = 0.1124349375f,
                         kP9 = -0.02062333816f;
  static constexpr float kDensity = 0.3989422804f;  // 1 / sqrt(2 pi).
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_NORMAL_TAIL_H_
