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

ThroughputMeter::Rates ThroughputMeter::Take(int64_t steps, int64_t targets, double end) {
  if (steps < 1 || targets < 0) {
    throw std::invalid_argument("[ThroughputMeter::Take] " + std::to_string(steps) + " steps, " +
                                std::to_string(targets) + " targets");
  }
  const double elapsed = before_ + (running_ ? std::max(end - since_, 0.0) : 0);
  since_ = std::max(since_, end);
  before_ = 0;

  Rates rates;
  rates.step_time_s = elapsed / static_cast<double>(steps);
  if (elapsed > 0) rates.targets_per_s = static_cast<double>(targets) / elapsed;
  const double flops =
      rates.targets_per_s * options_.flops_per_target / static_cast<double>(options_.devices);
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

namespace {

// TFLOP/s from NVIDIA's data sheets and whitepapers. Where a sheet has only the number for sparse
// factors, half of that. The first row counts whose name the GPU's begins with.
struct Row {
  std::string_view name;
  double fp32, half;  // half: bf16 and fp16, which are alike on all of these.
};
constexpr Row kRows[] = {
    {"NVIDIA A100", 19.5, 312},                // "NVIDIA A100 Tensor Core GPU", 2021: every form.
    {"NVIDIA H100 PCIe", 51.2, 756.5},         // "NVIDIA H100 Tensor Core GPU", 2022: 1513 sparse.
    {"NVIDIA H100 NVL", 60, 835.5},            // The same, 2024: 1671 sparse.
    {"NVIDIA H100", 66.9, 989.4},              // "NVIDIA H100 Architecture", 2022, table 2: SXM5.
    {"NVIDIA H200 NVL", 60, 835.5},            // "NVIDIA H200 Tensor Core GPU", 2024: 1671 sparse.
    {"NVIDIA H200", 67, 989.5},                // The same: 1979 sparse.
    {"NVIDIA L40S", 91.6, 362.05},             // "NVIDIA L40S", 2023.
    {"NVIDIA GeForce RTX 4090", 82.6, 165.2},  // "NVIDIA Ada GPU Architecture", 2022, table 2.
};

}  // namespace

std::optional<double> PeakFlops(std::string_view gpu, DType dtype) {
  for (const Row& row : kRows) {
    if (!gpu.starts_with(row.name)) continue;
    switch (dtype) {
      case DType::kFloat32:
        return row.fp32 * 1e12;
      case DType::kBFloat16:
      case DType::kFloat16:
        return row.half * 1e12;
      default:
        return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace fsdp
