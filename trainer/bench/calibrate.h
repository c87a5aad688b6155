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
#include "trainer/recipe/hardware.h"
#include "trainer/runtime/choose_device.h"
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

// The share of its kernels' own rates that a whole step reaches on this machine
// (Hardware::reached). Kernels that are timed alone find their operands in caches and wait for
// nobody; those of a step do not.

struct Recipe;

// Trains `recipe` as one rank on `device` and returns the median of a step's seconds, without the
// first two steps. Writes the run below `directory`. Blocks until the run has ended. Throws Error.
double SecondsOfAStep(Recipe recipe, const ChosenDevice& device, const std::string& directory);

// The value of `reached` with which a simulated step of one rank takes `seconds` on `hardware`; at
// most 1. Throws as Resolve() and Simulate().
double ReachedBy(double seconds, const Recipe& recipe, Hardware hardware);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_CALIBRATE_H_
