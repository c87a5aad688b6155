// A machine's file made of measurements, whoever has made them: `fsdp-train calibrate`.
//
//   Products    A rate a dtype: all FLOPs over all seconds.
//   Operations  By name and dtype: bytes a second over all of its shapes. With products: FLOPs a
//               second, the terms that the ends of a sum are worth (op_terms), and the rows and
//               columns that those of a result are worth (op_sides), which together fit its shapes
//               best, each by the share of its seconds that is missed, and no rate above the best
//               that a FLOP of the dtype has had, if products alone were timed, too. Attention in
//               tiles sets the rates of attention, too: in bf16, where it was timed in bf16.
//   Rings       t = step (n - 1) + sent / rate. The step is the smallest size's, so collective_s
//               stays 0; the rate is that of all gathers and scatters of at least 256 KiB, whose
//               bytes take at least half of their time, however slow the shortest one was.
// Tests: tests/trainer/bench/calibration_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_CALIBRATION_H_
#define FSDP_TRAIN_TRAINER_BENCH_CALIBRATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/bench/comm_bench.h"
#include "trainer/core/dtype.h"
#include "trainer/recipe/hardware.h"

namespace fsdp {

// Calls of products, or of one operation.
struct TimedWork {
  std::string op = {};            // Its name, as the price list has it; empty: products alone.
  DType dtype = DType::kFloat32;  // Dtype of activations and parameters.
  bool multiplies = false;        // It has products.
  double flops = 0, bytes = 0, seconds = 0;
  double ends = 0;   // FLOPs of one term of each sum of its products: their FLOPs over k.
  double sides = 0;  // FLOPs of one row and one column of each product: its FLOPs (1/m + 1/n).
};

struct Measurements {
  std::string name;  // As the driver calls the device.
  Hardware::Device device = Hardware::Device::kCpu;
  std::optional<std::string> kernels;  // A CPU's kind of kernels, as `devices` says it.
  std::optional<int64_t> memory, host_memory, cores;
  std::vector<TimedWork> products, ops;
  std::vector<double> copies;  // Bytes a second, read and written: the fastest counts.
  std::optional<double> host_copy, host_link;
  std::optional<double> launch_s;
  HostTimes host;  // 0: not measured.
  struct Group {
    int ranks = 2;
    std::vector<CommTime> times;
  };
  std::vector<Group> groups;  // Their ranks are on one host.
};

// All of its numbers have `source`, which begins with "calibrate: ". Throws std::invalid_argument
// where there is neither a product, an operation, a copy nor a collective, or no name.
Hardware HardwareOf(const Measurements& measured, const std::string& source);

// Measurements that are already there: the JSON of `bench gemm|ops|comm --json`, and the
// result.json of tools/gpu/kit, of which the rows of the parts `products`, `ops` and `nccl` count.
// Results of `bench ops` that name no shapes are of an older program: their operations have rates,
// but neither op_terms nor op_sides, for which the shapes of products are needed.

// Adds the file's measurements. Throws ConfigError, with the path, where the file cannot be read or
// is no such result, and where it is of another device, or of another kind of kernels, than
// `measured` already has.
void AddMeasurements(const std::string& path, Measurements& measured);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_CALIBRATION_H_
