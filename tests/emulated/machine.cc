#include "tests/emulated/machine.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "trainer/core/check.h"

constinit thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
constinit thread_local dim3 blockDim, gridDim;

namespace fsdp {
namespace {

// Set while a grid runs.
constinit thread_local FSDP_EMULATED_TLS Machine* machine = nullptr;

std::string Where(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

}  // namespace

Machine& Machine::OfThisThread() {
  static thread_local Machine of_this_thread;
  return of_this_thread;
}

void Machine::RunGrid(const EmulatedKernel& kernel, const cudaLaunchConfig_t& config,
                      const std::function<void()>& thread) {
  FSDP_CHECK(machine == nullptr);
  kernel_ = &kernel;
  thread_ = &thread;
  reverse_ = GetEmulatedOrder() == EmulatedOrder::kGreedyReverse;
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  threads_.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    threads_[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
  }
  warps_.resize((threads + 31) / 32);
  shared_.Resize(config.dynamicSmemBytes);
  if (!arrays_.contains(kernel_)) arrays_[kernel_] = SharedArrays(kernel.function());
  const SharedArrays arrays = arrays_[kernel_];
  machine = this;
  const uint64_t blocks = uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  for (uint64_t i = 0; i < blocks && failure_.empty(); ++i) {
    const uint64_t block = reverse_ ? blocks - 1 - i : i;
    blockIdx.x = static_cast<unsigned>(block % gridDim.x);
    blockIdx.y = static_cast<unsigned>(block / gridDim.x % gridDim.y);
    blockIdx.z = static_cast<unsigned>(block / gridDim.x / gridDim.y);
    shared_.Fill();
    arrays.Fill();
    RunBlock();
  }
  machine = nullptr;
  if (!failure_.empty()) throw EmulationError(std::exchange(failure_, ""));
}

void Machine::RunBlock() {
  live_ = static_cast<int>(threads_.size());
  at_barrier_ = 0;
  for (size_t w = 0; w < warps_.size(); ++w) {
    const int lanes = std::min(32, live_ - static_cast<int>(w) * 32);
    warps_[w].ready = ~uint32_t{0} >> (32 - lanes);
    warps_[w].at_barrier = warps_[w].at_instruction = 0;
  }
  SwitchTo(host_, Next(FirstWarp()));
  if (failure_.empty()) return;
  for (Thread& thread : threads_) {  // Those that have not ended never will.
    thread.copies.Drop();
    if (thread.stack >= 0) free_stacks_.push_back(std::exchange(thread.stack, -1));
  }
}

// The thread that is to run now: of this warp as long as one of it is ready, then of the first one
// that has any. -1: none.
int Machine::Next(int warp) const {
  const int warps = static_cast<int>(warps_.size());
  for (int i = 0; warps_[warp].ready == 0; ++i) {
    if (i == warps) return -1;
    warp = reverse_ ? warps - 1 - i : i;
  }
  const uint32_t ready = warps_[warp].ready;
  return warp * 32 + (reverse_ ? 31 - std::countl_zero(ready) : std::countr_zero(ready));
}

void Machine::SwitchTo(FiberContext& from, int next, bool ends) {
  if (next < 0) FailForWaiting();
  current_ = next;
  Thread& thread = threads_[next];
  if (thread.stack < 0) {
    if (free_stacks_.empty()) {
      free_stacks_.push_back(static_cast<int>(stacks_.size()));
      stacks_.emplace_back();
    }
    thread.stack = free_stacks_.back();
    free_stacks_.pop_back();
    thread.context = MakeFiber(stacks_[thread.stack], FiberMain);
  }
  threadIdx = thread.index;
  SwitchFiber(from, thread.context, ends);
}

void Machine::Fail(const std::string& what) {
  const auto triple = [](auto v) {
    return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) +
           ")";
  };
  throw EmulationError(kernel_->name() + ", block " + triple(blockIdx) + ": " + what);
}

// A stack runs one thread after the other, as long as they end without having waited.
void Machine::FiberMain() {
  FiberContext another;
  BeginFiber(machine->host_.bottom == nullptr ? machine->host_ : another);
  try {
    do {
      (*machine->thread_)();
    } while (machine->BeginsNextThread());
  } catch (const EmulationError& error) {
    machine->failure_ = error.what();
  }
  // A failure leaves the other threads where they are.
  FiberContext nowhere;
  SwitchFiber(nowhere, machine->host_, /*ends=*/true);
  std::abort();
}

// The thread that runs has come to its end. False: the block's last one.
bool Machine::BeginsNextThread() {
  Thread& thread = threads_[current_];
  thread.copies.Finish();
  Warp& warp = warps_[current_ / 32];
  warp.ready &= ~Bit();
  --live_;
  if (warp.at_instruction != 0) LookAtInstructions(warp);
  if (at_barrier_ != 0) LookAtBarrier();
  const int next = Next(current_ / 32);
  if (next >= 0 && threads_[next].stack < 0) {
    threads_[next].stack = std::exchange(thread.stack, -1);
    current_ = next;
    threadIdx = threads_[next].index;
    return true;
  }
  if (next < 0 && live_ > 0) FailForWaiting();
  // Nobody takes the stack before it is left.
  free_stacks_.push_back(std::exchange(thread.stack, -1));
  if (next < 0) return false;
  FiberContext nowhere;
  SwitchTo(nowhere, next, /*ends=*/true);
  std::abort();
}

void Machine::Barrier(std::source_location where) {
  const auto same_file = [](const char* a, const char* b) {
    return a == b || std::string_view(a) == b;
  };
  if (at_barrier_ == 0) {
    barrier_ = where;
  } else if (where.line() != barrier_.line() ||
             !same_file(where.file_name(), barrier_.file_name())) {
    Fail("its threads wait at different barriers: " + Where(barrier_) + " and " + Where(where));
  }
  const int self = current_;
  Warp& warp = warps_[self / 32];
  warp.ready &= ~Bit();
  warp.at_barrier |= Bit();
  ++at_barrier_;
  const int next = Next(LookAtBarrier() ? FirstWarp() : self / 32);
  if (next != self) SwitchTo(threads_[self].context, next);
}

// Whether all that are left have come to it, and go on.
bool Machine::LookAtBarrier() {
  if (at_barrier_ < live_) return false;
  for (Warp& warp : warps_) warp.ready |= std::exchange(warp.at_barrier, 0);
  at_barrier_ = 0;
  return true;
}

void Machine::Execute(const WarpInstruction& instruction, uint32_t mask, void* operand) {
  const int self = current_, lane = self % 32;
  Warp& warp = warps_[self / 32];
  if ((mask & Bit()) == 0) Fail(std::string(instruction.name) + " by a lane that its mask lacks");
  warp.instruction[lane] = &instruction;
  warp.mask[lane] = mask;
  warp.operand[lane] = operand;
  warp.ready &= ~Bit();
  warp.at_instruction |= Bit();
  const uint32_t wanted = mask & warp.live();
  if ((warp.at_instruction & wanted) == wanted) return Complete(warp, lane);
  SwitchTo(threads_[self].context, Next(self / 32));
}

// The instruction of this lane, whose others have all come.
void Machine::Complete(Warp& warp, int lane) {
  const WarpInstruction& instruction = *warp.instruction[lane];
  const uint32_t lanes = warp.mask[lane] & warp.live();
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int other = std::countr_zero(rest);
    if (warp.instruction[other] != &instruction) {
      Fail("lanes of a warp are at " + std::string(instruction.name) + " and at " +
           warp.instruction[other]->name);
    }
    if (warp.mask[other] != warp.mask[lane]) {
      Fail("lanes of a warp execute " + std::string(instruction.name) + " with different masks");
    }
  }
  if (instruction.whole && lanes != ~uint32_t{0}) {
    Fail(std::string(instruction.name) + " by a part of a warp");
  }
  instruction.compute(warp.operand.data(), lanes);
  warp.at_instruction &= ~lanes;
  warp.ready |= lanes;
}

// A lane has ended: others may have waited for it alone.
void Machine::LookAtInstructions(Warp& warp) {
  for (uint32_t rest = warp.at_instruction; rest != 0;) {
    const int lane = std::countr_zero(rest);
    const uint32_t wanted = warp.mask[lane] & warp.live();
    if ((warp.at_instruction & wanted) == wanted) Complete(warp, lane);
    rest &= ~wanted;
  }
}

void Machine::FailForWaiting() {
  std::map<std::string, int> places;
  for (const Warp& warp : warps_) {
    const int at_barrier = std::popcount(warp.at_barrier);
    if (at_barrier > 0) places["at the barrier of " + Where(barrier_)] += at_barrier;
    for (uint32_t rest = warp.at_instruction; rest != 0; rest &= rest - 1) {
      ++places["at " + std::string(warp.instruction[std::countr_zero(rest)]->name)];
    }
  }
  std::string text;
  for (const auto& [place, threads] : places) {
    text += (text.empty() ? "" : ", ") + std::to_string(threads) + " " + place;
  }
  const auto ended = static_cast<int>(threads_.size()) - live_;
  if (ended > 0) text += ", " + std::to_string(ended) + " have ended";
  Fail("the threads wait for each other: " + text);
}

// --- what threads call ---

void EmulateBarrier(std::source_location where) { machine->Barrier(where); }
void ExecuteByWarp(const WarpInstruction& instruction, uint32_t mask, void* operand) {
  machine->Execute(instruction, mask, operand);
}
AsyncCopies& CopiesOfThread() { return machine->copies(); }
void FailEmulation(const std::string& what) { machine->Fail(what); }
int EmulatedLane() { return machine->lane(); }
unsigned char* EmulatedDynamicShared() { return machine->shared(); }

}  // namespace fsdp
