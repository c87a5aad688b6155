#include "tests/emulated/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "trainer/core/check.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Callee-saved registers go to the old stack and come from the new one. glibc's swapcontext() makes
// two system calls besides.
extern "C" void FsdpSwitchStack(void** from, void* to);
asm(R"(
.text
.type FsdpSwitchStack, @function
FsdpSwitchStack:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size FsdpSwitchStack, . - FsdpSwitchStack
)");

namespace fsdp {
namespace {

constexpr size_t kGuard = 4096;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStack = size_t{252} << 10;
#else
constexpr size_t kStack = size_t{60} << 10;
#endif
// All stacks are as far apart: without it their tops would share a few sets of every cache.
constexpr size_t kSkews = 64, kSkew = 11 * 64;

}  // namespace

FiberStack::FiberStack() {
  void* data = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  FSDP_CHECK(data != MAP_FAILED);
  FSDP_CHECK_EQ(mprotect(data, kGuard, PROT_NONE), 0);
  bottom_ = static_cast<std::byte*>(data) + kGuard;
}

FiberStack::FiberStack(FiberStack&& other) noexcept
    : bottom_(std::exchange(other.bottom_, nullptr)) {}

FiberStack::~FiberStack() {
  if (bottom_ == nullptr) return;
  ForgetFiber(*this);  // The system may give the addresses to somebody else.
  munmap(bottom_ - kGuard, kGuard + kStack);
}

size_t FiberStack::bytes() { return kStack; }

FiberContext MakeFiber(const FiberStack& stack, void (*entry)()) {
  constexpr int kRegisters = 6;
  ForgetFiber(stack);
  const size_t skew = reinterpret_cast<uintptr_t>(stack.bottom()) / (kGuard + kStack) % kSkews;
  void** top = reinterpret_cast<void**>(stack.bottom() + kStack - skew * kSkew);
  *--top = nullptr;  // A return address, so that the stack is aligned as after a call.
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kRegisters; ++i) *--top = nullptr;
  return {top, stack.bottom(), kStack};
}

void SwitchFiber(FiberContext& from, const FiberContext& to, [[maybe_unused]] bool ends) {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(ends ? nullptr : &fake_stack, to.bottom, to.bytes);
  FsdpSwitchStack(&from.stack_pointer, to.stack_pointer);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  FsdpSwitchStack(&from.stack_pointer, to.stack_pointer);
#endif
}

void BeginFiber([[maybe_unused]] FiberContext& from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.bytes);
#endif
}

void ForgetFiber([[maybe_unused]] const FiberStack& stack) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack.bottom(), kStack);
#endif
}

}  // namespace fsdp
