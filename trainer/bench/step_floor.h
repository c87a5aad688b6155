// How short a step can be on a machine whose rates are known: its products and its attention at the
// best rates seen there, the bytes of all that is left at the rate of a copy, nothing between two
// kernels and nothing twice. A measured step is held against it.
#ifndef FSDP_TRAIN_TRAINER_BENCH_STEP_FLOOR_H_
#define FSDP_TRAIN_TRAINER_BENCH_STEP_FLOOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/recipe/hardware.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/cost.h"

namespace fsdp {

// All calls of an op in a step.
struct FloorPart {
  std::string op;            // "linear_forward"; "linear_backward, dw" of one of its products.
  Launches launches = {};    // Of kernels, and copies.
  double flops = 0;          // A fused multiply-add counts two.
  double bytes = 0;          // Of device memory, read and written, each operand once.
  double extra_bytes = 0;    // Beside them, by the kernels that a GPU has: see OnGpu.
  double link_bytes = 0;     // Sent to other ranks: in no time here.
  double seconds = 0;        // At the machine's rates.
  double extra_seconds = 0;  // That the extra bytes add: none where FLOPs take longer.
  bool in_the_floor = true;  // Else a kernel beside it could do that on its way: a cast, a copy.
};

struct StepFloor {
  std::vector<FloorPart> parts;  // In the order in which a step comes to them.
  double tokens = 0;             // Of the step, over all ranks.

  double Seconds(bool in_the_floor) const;  // Of the parts that are, or are not.
  Launches AllLaunches() const;
  // What no floor needs: of parts beside it all, of the others the extra bytes.
  double NeedlessBytes() const;
  double NeedlessSeconds() const;
};

// Of rank 0 of `world`. Throws ConfigError where the file lacks a rate that the step needs, with
// its key. A product or attention counts with the larger of FLOPs and bytes at their rates. On a
// GPU products are cuBLASLt's, and attention is cuDNN's where it can be.
StepFloor FloorOf(const Recipe& recipe, int world, const Hardware& hardware);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_STEP_FLOOR_H_
