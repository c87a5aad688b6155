// The matrix products of a training step, and the time that they take alone: the limit of a step.
#ifndef FSDP_TRAIN_TRAINER_BENCH_STEP_PRODUCTS_H_
#define FSDP_TRAIN_TRAINER_BENCH_STEP_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/bench/bench_tensors.h"
#include "trainer/core/dtype.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

struct Recipe;

// C[m, n] = op(A)[m, k] op(B)[k, n], or += where `adds`, as an op of the step multiplies: by the
// kernels for groups (ops/grouped_linear.h) where it has groups, which then have equal loads.
struct StepProduct {
  std::string name;
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  bool adds = false;
  int64_t count = 0;               // Calls in a step.
  DType dtype = DType::kFloat32;   // A's and B's.
  DType result = DType::kFloat32;  // C's.
  int64_t groups = 1;              // As Product's.

  double flops() const { return 2.0 * m * n * k * count; }  // Those of all calls.
};

struct StepWork {
  std::vector<StepProduct> products;  // Linear layers' and the head's, equal ones as one.
  // FLOPs of attention's products, below the diagonal. These products are in tiles, inside another
  // op, and cannot be timed as calls.
  double attention_flops = 0;
};

// The products of rank 0, as the ops of its step state them.
StepWork StepWorkOf(const ResolvedRun& run);

// Runs the products, as ops for linear layers do, with operands of its own.
class StepProductsBench {
 public:
  // On the CPU with so many threads, or on visible GPU `gpu`: by the library of a run, or by
  // kernels of our own. Throws DeviceError, MemoryError.
  StepProductsBench(StepWork work, int threads, DeviceType device = DeviceType::kCpu, int gpu = 0,
                    bool own_kernels = false);

  // Seconds of all calls of each product, once through a step, by the device's clock. Blocks.
  std::vector<double> Run();
  // Seconds of all calls of the product with this index, below work().products.size(). Blocks.
  double Run(size_t product);

  // The time of a step by `seconds` of Run(): their sum, and attention at the rate they reach.
  double StepSeconds(const std::vector<double>& seconds) const;

  const StepWork& work() const { return work_; }
  std::string library() const { return library_ ? library_->name() : "own"; }  // Its name.

 private:
  void Multiply(const StepProduct& product);
  void MultiplyGroups(const StepProduct& product, const ConstView& offsets);
  // The first elements of one of the operands.
  static View Part(const View& operand, DType dtype, const Shape& shape);

  const StepWork work_;
  const std::unique_ptr<Device> device_;
  BenchTensors tensors_;
  View a_, b_, c_, d_;         // As large as the largest, in memory as a run has it. d: like c.
  std::vector<View> offsets_;  // The groups' bounds, by product. Empty: it has no groups.
  std::optional<BenchLibrary> library_;
  const std::unique_ptr<Stream> stream_;  // Last: its work reads the above.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_STEP_PRODUCTS_H_
