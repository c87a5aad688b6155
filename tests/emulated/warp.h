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
  // operands[i] is what lane i brought, for each bit i of `lanes`; it reads and writes through it.
  void (*compute)(void* const* operands, uint32_t lanes);
};

// By the thread that runs, with the lanes of the mask that have not ended. The same object for the
// same instruction.
void ExecuteByWarp(const WarpInstruction& instruction, uint32_t mask, void* operand);

// Those of the thread that runs.
AsyncCopies& CopiesOfThread();

// Ends the grid with an EmulationError that says kernel and block, too.
[[noreturn]] void FailEmulation(const std::string& what);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_WARP_H_
