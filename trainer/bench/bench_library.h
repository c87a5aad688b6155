// The library that multiplies in a run on a GPU, for a benchmark's stream.
// Tests: tests/trainer/bench/op_bench_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_BENCH_LIBRARY_H_
#define FSDP_TRAIN_TRAINER_BENCH_BENCH_LIBRARY_H_

#include <memory>
#include <string>
#include <vector>

#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Outlives the stream's work.
class BenchLibrary {
 public:
  // The library computes the stream's products from here on, those of `shapes` by the algorithm
  // that is fastest now. Does nothing on other devices than CUDA. Throws DeviceError, MemoryError.
  BenchLibrary(Device& device, Stream& stream, const std::vector<GemmShape>& shapes = {});

  const std::string& name() const { return name_; }  // "cuBLASLt 13.1.0"; "own": there is none.

 private:
  std::unique_ptr<GemmLibrary> library_;
  Buffer workspace_;
  GemmResources resources_;
  std::string name_ = "own";
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_BENCH_LIBRARY_H_
