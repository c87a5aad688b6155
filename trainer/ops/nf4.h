// The sixteen values of nf4: of QLoRA (arXiv:2305.14314), appendix E, as bitsandbytes has them in
// fp32. A code is the index of its value.
// Tests: tests/trainer/ops/weight_records_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_NF4_H_
#define FSDP_TRAIN_TRAINER_OPS_NF4_H_

#include <array>

namespace fsdp {

inline constexpr std::array<float, 16> kNf4Values = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// The largest quotient that has a code: halfway to the next value, in fp32. For all but the last.
inline constexpr std::array<float, 15> kNf4LastOf = [] {
  std::array<float, 15> last{};
  for (size_t i = 0; i < last.size(); ++i) last[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
  return last;
}();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_NF4_H_
