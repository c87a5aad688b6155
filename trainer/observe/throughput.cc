#include "trainer/observe/throughput.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "trainer/core/check.h"

namespace fsdp {

ThroughputMeter::ThroughputMeter(ThroughputOptions options) : options_(std::move(options)) {
  if (!options_.clock || options_.devices < 1 ||
      (options_.peak_flops && !(*options_.peak_flops > 0))) {
    throw std::invalid_argument("[ThroughputMeter] want a clock, devices >= 1 (" +
                                std::to_string(options_.devices) + ") and a peak > 0 or none");
  }
  since_ = options_.clock();
}

void ThroughputMeter::Pause() {
  FSDP_CHECK(running_);
  running_ = false;
  before_ += options_.clock() - since_;
}

void ThroughputMeter::Continue() {
  FSDP_CHECK(!running_);
  running_ = true;
  since_ = options_.clock();
}

ThroughputMeter::Rates ThroughputMeter::Take(int64_t steps, int64_t tokens, double end) {
  if (steps < 1 || tokens < 0) {
    throw std::invalid_argument("[ThroughputMeter::Take] " + std::to_string(steps) + " steps, " +
                                std::to_string(tokens) + " tokens");
  }
  const double elapsed = before_ + (running_ ? std::max(end - since_, 0.0) : 0);
  since_ = std::max(since_, end);
  before_ = 0;

  Rates rates;
  rates.step_time_s = elapsed / static_cast<double>(steps);
  if (elapsed > 0) rates.tokens_per_s = static_cast<double>(tokens) / elapsed;
  const double flops =
      rates.tokens_per_s * options_.flops_per_token / static_cast<double>(options_.devices);
  rates.tflops_per_device = flops * 1e-12;
  if (options_.peak_flops) rates.mfu = flops / *options_.peak_flops;

  constexpr double kForget = 1.0 / 8;
  mean_step_s_ =
      takes_ < 2 ? rates.step_time_s : mean_step_s_ + kForget * (rates.step_time_s - mean_step_s_);
  ++takes_;
  return rates;
}

double ThroughputMeter::TimeLeft(int64_t steps) const {
  return takes_ == 0 ? -1 : mean_step_s_ * static_cast<double>(steps);
}

}  // namespace fsdp
