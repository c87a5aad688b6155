// Tensors for benchmarks, on any device. Their contents are no special case of any op.
// Tests: tests/trainer/bench/op_bench_test.cc
#ifndef FSDP_TRAIN_TRAINER_BENCH_BENCH_TENSORS_H_
#define FSDP_TRAIN_TRAINER_BENCH_BENCH_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Holds the tensors of one benchmark as long as it lives; on the simulated device they have
// addresses and no contents. All but Workspace() block. Throw MemoryError, DeviceError.
class BenchTensors {
 public:
  // `dtype` is that of Values(), which stand for activations, weights and their gradients.
  BenchTensors(Device& device, DType dtype);

  DType dtype() const { return dtype_; }
  DeviceType kernel_type() const { return device_.kernel_type(); }

  // From -0.051 to 0.051 in steps of 0.0001, again and again: so the softmax of a head is not of a
  // few tokens alone.
  View Values(const Shape& shape) { return Values(shape, dtype_); }
  View Values(const Shape& shape, DType dtype);  // fp32, bf16 or fp16.
  View Float(const Shape& shape) { return Values(shape, DType::kFloat32); }
  View Constant(const Shape& shape, float value, DType dtype = DType::kFloat32);
  View Int(const Shape& shape, const std::function<int32_t(int64_t)>& value);
  View Bytes(std::span<const std::byte> bytes);
  View Workspace(int64_t bytes);

 private:
  View New(DType dtype, const Shape& shape);
  View Filled(DType dtype, const Shape& shape, const std::function<float(int64_t)>& value);
  View Written(DType dtype, const Shape& shape, const std::function<void(const View&)>& write);

  Device& device_;
  const DType dtype_;
  std::vector<Buffer> buffers_;
  const std::unique_ptr<Stream> stream_;
};

// The library that multiplies in a run on a GPU, for a benchmark's stream.

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

#endif  // FSDP_TRAIN_TRAINER_BENCH_BENCH_TENSORS_H_
