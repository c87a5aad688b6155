// How fast a rank updates.
// Tests: tests/trainer/engine/update_share_test.cc
#ifndef FSDP_TRAIN_TRAINER_ENGINE_UPDATE_RATES_H_
#define FSDP_TRAIN_TRAINER_ENGINE_UPDATE_RATES_H_

namespace fsdp {

// Elements a second, each side alone.
struct UpdateRates {
  double device = 0;  // On its compute stream.
  double host = 0;    // On the host's stream that updates offloaded units.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_UPDATE_RATES_H_
