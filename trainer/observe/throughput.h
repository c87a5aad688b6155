// How fast a run is, from any clock: tokens/s, TFLOP/s, MFU and the time left.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_THROUGHPUT_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_THROUGHPUT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "trainer/core/dtype.h"

namespace fsdp {

struct ThroughputOptions {
  std::function<double()> clock;     // Seconds; differences only. A device's Now().
  double flops_per_target = 0;       // The model's, forward and backward, without recomputation.
  int64_t devices = 1;               // They share the work.
  std::optional<double> peak_flops;  // Per second and device, at the dtype of the GEMMs.
};

class ThroughputMeter {
 public:
  explicit ThroughputMeter(ThroughputOptions options);  // Running. Throws std::invalid_argument.

  // Time between the two does not count: evaluation, a blocking checkpoint. Pairs, not nested.
  void Pause();
  void Continue();

  struct Rates {
    double step_time_s = 0;  // Mean of the steps since the last Take.
    double targets_per_s = 0;
    double tflops_per_device = 0;
    std::optional<double> mfu;  // flops / peak; absent where the peak is unknown.
  };
  // `steps` >= 1 steps ended since the last Take (or the start), over all ranks with `targets`
  // targets, the last of them at `end` on the clock: a device ends a step while the host
  // enqueues the next ones, and the host may read several at once. Rates are 0 if no time lies
  // between.
  Rates Take(int64_t steps, int64_t targets, double end);

  // Seconds for that many steps more, from a running mean of a step's time that forgets with 1/8 a
  // Take. The first Take, which warms caches up, counts only until there is a second. -1 before
  // any.
  double TimeLeft(int64_t steps) const;

 private:
  ThroughputOptions options_;
  double since_;       // The last Take's end, or the clock at the last Continue.
  double before_ = 0;  // Counted before the last Pause.
  bool running_ = true;
  int64_t takes_ = 0;
  double mean_step_s_ = -1;
};

// The most FLOP/s of a GPU: the divisor of MFU.

// FLOP/s of dense matrix products with factors of this dtype and sums in fp32, as the vendor states
// it for the GPU of this name (cudaDeviceProp::name). fp32 is that of FMAs: no TF32. Empty where
// the table does not have the GPU, or not the dtype.
std::optional<double> PeakFlops(std::string_view gpu, DType dtype);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_THROUGHPUT_H_
