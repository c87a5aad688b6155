// Stacks that one thread of the host switches between by itself (x86-64). AddressSanitizer is told
// of each switch. To ThreadSanitizer all fibers of a thread are that thread, which is true.
#ifndef FSDP_TRAIN_TESTS_EMULATED_FIBER_H_
#define FSDP_TRAIN_TESTS_EMULATED_FIBER_H_

#include <cstddef>
#include <vector>

namespace fsdp {

// Memory of the system, taken as it is touched. Ends at an inaccessible page.
class FiberStack {
 public:
  FiberStack();
  FiberStack(FiberStack&& other) noexcept;
  FiberStack& operator=(FiberStack&&) = delete;
  ~FiberStack();

  std::byte* bottom() const { return bottom_; }
  static size_t bytes();

 private:
  std::byte* bottom_;
};

// The place where a fiber, or the thread itself, goes on.
struct FiberContext {
  void* stack_pointer = nullptr;
  const void* bottom = nullptr;  // The begin of the fiber's stack, for AddressSanitizer.
  size_t bytes = 0;
};

// A fiber that begins with entry() on this stack. It must never return.
FiberContext MakeFiber(const FiberStack& stack, void (*entry)());

// Leaves `from` for `to`, and returns when somebody switches back to `from`. `ends`: nobody will.
void SwitchFiber(FiberContext& from, const FiberContext& to, bool ends = false);
// First call of an entry: tells the context that it came from where that context's stack lies.
void BeginFiber(FiberContext& from);
// Releases the contents of the stack of a fiber that was left for good. Part of MakeFiber().
void ForgetFiber(const FiberStack& stack);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_FIBER_H_
