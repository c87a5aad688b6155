// The matrix products of a training step, and the time that they take alone: the limit of a step.
#ifndef FSDP_TRAIN_TRAINER_BENCH_STEP_PRODUCTS_H_
#define FSDP_TRAIN_TRAINER_BENCH_STEP_PRODUCTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/recipe/recipe.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// C[m, n] = op(A)[m, k] op(B)[k, n], or += where `adds`, as an op of the step calls Gemm().
struct StepProduct {
  std::string name;
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  bool adds = false;
  int64_t count = 0;  // Calls in a step.

  double flops() const { return 2.0 * m * n * k * count; }  // Of all of them.
};

struct StepWork {
  std::vector<StepProduct> products;  // Of linear layers and of the head, equal ones as one.
  // Of attention's products, below the diagonal, without recomputation: they are in tiles, inside
  // another op, and cannot be timed as calls.
  double attention_flops = 0;
};

// Of one rank of `world`: what the ops of its step say, recorded on the simulated device.
StepWork StepWorkOf(const Recipe& recipe, int world);

// Runs the products with operands of its own.
class StepProductsBench {
 public:
  StepProductsBench(StepWork work, int threads);

  // Seconds of all calls of each product, once through a step. Blocks.
  std::vector<double> Run();

  // What `seconds` of Run() mean for a step: their sum, and attention at the rate they reach.
  double StepSeconds(const std::vector<double>& seconds) const;

  const StepWork& work() const { return work_; }

 private:
  const StepWork work_;
  ThreadPool pool_;
  const std::unique_ptr<Device> device_;
  Buffer a_, b_, c_;  // As large as the largest, in memory as a run has it.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_STEP_PRODUCTS_H_
