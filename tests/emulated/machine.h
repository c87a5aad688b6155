// A thread of the host, acting as a multiprocessor that runs one block at a time.
#ifndef FSDP_TRAIN_TESTS_EMULATED_MACHINE_H_
#define FSDP_TRAIN_TESTS_EMULATED_MACHINE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <source_location>
#include <string>
#include <vector>

#include "tests/emulated/async_copies.h"
#include "tests/emulated/fiber.h"
#include "tests/emulated/shared_arrays.h"
#include "tests/emulated/shared_memory.h"
#include "tests/emulated/warp.h"

namespace fsdp {

class Machine {
 public:
  static Machine& OfThisThread();

  // Calls `thread` once for each thread of the grid. Throws EmulationError.
  void RunGrid(const EmulatedKernel& kernel, const cudaLaunchConfig_t& config,
               const std::function<void()>& thread);

  // Called by the emulated thread that runs.
  void Barrier(std::source_location where);
  void Execute(const WarpInstruction& instruction, uint32_t mask, void* operand);
  [[noreturn]] void Fail(const std::string& what);
  int lane() const { return current_ % 32; }
  AsyncCopies& copies() { return threads_[current_].copies; }
  unsigned char* shared() const { return shared_.data(); }

 private:
  struct Thread {
    uint3 index;
    FiberContext context;
    int stack = -1;  // Its index; -1 before the thread begins and after it ends.
    AsyncCopies copies;
  };
  // Lanes as bits. Each lane is in one of the first three, or has ended.
  struct Warp {
    uint32_t ready = 0, at_barrier = 0, at_instruction = 0;
    // For lanes at an instruction.
    std::array<const WarpInstruction*, 32> instruction;
    std::array<uint32_t, 32> mask;
    std::array<void*, 32> operand;

    uint32_t live() const { return ready | at_barrier | at_instruction; }
  };

  static void FiberMain();
  void RunBlock();
  bool BeginsNextThread();
  int Next(int warp) const;
  void SwitchTo(FiberContext& from, int next, bool ends = false);
  void Complete(Warp& warp, int lane);
  void LookAtInstructions(Warp& warp);
  bool LookAtBarrier();
  [[noreturn]] void FailForWaiting();

  int FirstWarp() const { return reverse_ ? static_cast<int>(warps_.size()) - 1 : 0; }
  uint32_t Bit() const { return uint32_t{1} << current_ % 32; }

  bool reverse_ = false;
  const EmulatedKernel* kernel_ = nullptr;
  const std::function<void()>* thread_ = nullptr;
  std::vector<FiberStack> stacks_;
  std::vector<int> free_stacks_;
  SharedMemory shared_;
  std::map<const EmulatedKernel*, SharedArrays> arrays_;
  // The state of the block.
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  int live_ = 0, at_barrier_ = 0;
  std::source_location barrier_;  // Where the threads at a barrier wait.
  int current_ = 0;
  FiberContext host_;
  std::string failure_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_MACHINE_H_
