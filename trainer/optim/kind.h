// Tests: tests/trainer/optim/optimizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPTIM_KIND_H_
#define FSDP_TRAIN_TRAINER_OPTIM_KIND_H_

#include <array>
#include <cstdint>
#include <optional>

#include "trainer/core/dtype.h"

namespace fsdp {

enum class OptimizerKind { kAdamW, kSgd, kMuon, kAdafactor };

// A rule that a group of parameters has instead of the optimizer's.
enum class GroupRule { kAdamW };

// How the size of Muon's update follows from a matrix (torch.optim.Muon, adjust_lr_fn):
//   kOriginal       sqrt(max(1, outputs / inputs))       Jordan et al. 2024
//   kMatchRmsAdamW  0.2 sqrt(max(outputs, inputs))       Moonshot AI 2025, arXiv:2502.16982: the
//                   update of a matrix is as large as AdamW's, whose learning rate it can have
enum class AdjustLr { kOriginal, kMatchRmsAdamW };

// Muon, for matrices (muon.h). All else is updated by AdamW.
struct MuonOptions {
  double momentum = 0.95;  // In [0, 1).
  bool nesterov = true;
  int64_t ns_steps = 5;  // Steps of the iteration (ops/newton_schulz.h).
  std::array<double, 3> ns_coefficients = {3.4445, -4.775, 2.0315};
  std::optional<DType> ns_dtype;  // fp32 or bf16: of the iteration, and of what ranks send each
                                  // other for it. Empty: fp32 where parameters are computed with in
                                  // fp32, else bf16.
  AdjustLr adjust_lr = AdjustLr::kMatchRmsAdamW;
  // NorMuon (ops/row_moments.h): decay of the second moments of an update's outputs, in [0, 1).
  std::optional<double> row_beta2;

  bool operator==(const MuonOptions&) const = default;
};

// Adafactor (ops/factored.h).
struct AdafactorOptions {
  double beta2_decay = -0.8;
  std::array<double, 2> eps = {1.1920929e-7, 1e-3};
  double d = 1;

  bool operator==(const AdafactorOptions&) const = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPTIM_KIND_H_
