// Measures on this machine what a simulated step needs to know of it: products at several sizes, a
// copy, each operation of the cases of `bench ops`, the overhead of a stream and of its host,
// collectives between ranks of this host.
//
// Everything is measured in several rounds, one after the other, and the fastest counts: others on
// the machine only slow it down.
// Tests: tests/trainer/bench/calibration_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_CALIBRATE_H_
#define FSDP_TRAIN_TRAINER_BENCH_CALIBRATE_H_

#include <functional>
#include <string>

#include "trainer/bench/calibration.h"
#include "trainer/runtime/device.h"

namespace fsdp {

struct CalibrateOptions {
  DeviceType device = DeviceType::kCpu;  // Or kCuda.
  int gpu = 0;                           // Among the visible ones.
  int threads = 1;                       // A CPU's: all of its cores.
  // Ranks of the group whose collectives are timed: processes of this host, with a GPU each on
  // GPUs. 1: none are timed.
  int ranks = 2;
  int rounds = 2;
  double seconds = 0.03;  // For each operation in each round, at least.
  bool small = false;     // Shapes for tests, of which no number means anything.
};

// Adds to `measured` all but the machine's name, memory and cores. `progress`: a line about what
// comes next. Blocks for a minute or two. Forks: to be called before there are threads. Throws
// DeviceError, MemoryError, CommError.
void Measure(const CalibrateOptions& options,
             const std::function<void(const std::string&)>& progress, Measurements& measured);

// The part of it that no result of `bench` has: copies, the link to the host, and overheads of a
// stream and of its host. Blocks for some seconds. Throws DeviceError, MemoryError.
void MeasureCopiesAndOverheads(const CalibrateOptions& options,
                               const std::function<void(const std::string&)>& progress,
                               Measurements& measured);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_CALIBRATE_H_
