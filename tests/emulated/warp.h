// Instructions that the lanes of a warp execute together: the last one to arrive computes for all.
#ifndef FSDP_TRAIN_TESTS_EMULATED_WARP_H_
#define FSDP_TRAIN_TESTS_EMULATED_WARP_H_

#include <cstdint>
#include <string>

#include "tests/emulated/async_copies.h"

namespace fsdp {

struct WarpInstruction {
  const char* name;
  bool whole;  // All 32 lanes must execute it.
  // operands[i] is lane i's operand, for each bit i of `lanes`. compute() reads and writes through
  // it.
  void (*compute)(void* const* operands, uint32_t lanes);
};

// Called by the emulated thread that runs, with the mask's lanes that have not ended. All lanes
// pass the same object for the same instruction.
void ExecuteByWarp(const WarpInstruction& instruction, uint32_t mask, void* operand);

// The copies of the emulated thread that runs.
AsyncCopies& CopiesOfThread();

// Ends the grid with an EmulationError, which also names kernel and block.
[[noreturn]] void FailEmulation(const std::string& what);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_WARP_H_
