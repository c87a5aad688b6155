// How short a step can be on a machine whose rates are known. Products and attention take their
// time at the best rates seen there, all other bytes at the rate of a copy, with nothing between
// two kernels and nothing twice. Offloaded parameters move and are updated beside that. A measured
// step is held against this floor.
// Tests: tests/trainer/bench/step_floor_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_STEP_FLOOR_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_STEP_FLOOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/engine/step_resource.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/recipe/hardware.h"
#include "trainer/runtime/cost.h"
#include "trainer/runtime/operation.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// All calls of an op in a step that are spent on the same.
struct FloorPart {
  std::string op;  // "linear_forward"; "linear_backward, dw" of one of its products.
  StepResource resource = StepResource::kDevice;
  Launches launches = {};    // A GPU's kernels', and copies'.
  double flops = 0;          // A fused multiply-add counts two.
  double bytes = 0;          // As BytesThere() counts them, each operand once.
  double extra_bytes = 0;    // Beside them, by the kernels that a GPU has: see OnGpu.
  double link_bytes = 0;     // Sent to other ranks: in no time here.
  double seconds = 0;        // At the machine's rates.
  double extra_seconds = 0;  // Added by the extra bytes: none where FLOPs take longer.
  bool in_the_floor = true;  // Else a kernel beside it could do that on its way: a cast, a copy.
};

struct StepFloor {
  std::vector<FloorPart> parts;  // In the order in which a step comes to them.
  double tokens = 0;             // The step's, as tokens_per_s counts them.
  // Seconds of the device that may run while the host updates: the first micro-batch's forward pass
  // and the device's own updates.
  double beside_updates = 0;

  // Seconds of the parts that are in the floor.
  double SecondsOf(StepResource resource) const;
  // The longest of the resources' times, which run beside each other. The host's updates begin
  // behind the last backward pass, whose norm they need, and the next forward pass needs all of
  // them: their time beyond `beside_updates` is the device's, too.
  double Seconds() const;
  Launches AllLaunches() const;
  // The device's bytes and seconds that no floor needs: all of the parts beside the floor, and the
  // extra bytes of the others.
  double NeedlessBytes() const;
  double NeedlessSeconds() const;
};

// The floor of rank 0; `run` is of that machine (PlaceToBench(), loop/place.h). Throws ConfigError
// where the file lacks a rate that the step needs, with its key. A product or attention counts with
// the larger of FLOPs and bytes at their rates. On a GPU products are cuBLASLt's, and attention is
// cuDNN's where it can be. On a CPU nothing is launched, no bytes are extra, and the logits of the
// head's loss, which no cache holds, are among its bytes. `seen` gets each operation of the step,
// too; null: nothing.
using SeeOperation = std::function<void(const Operation& operation, const Stream& stream)>;
StepFloor FloorOf(const ResolvedRun& run, const Hardware& hardware,
                  const SeeOperation& seen = nullptr);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_STEP_FLOOR_H_
