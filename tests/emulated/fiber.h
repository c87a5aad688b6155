// Stacks that one thread of the host switches between by itself (x86-64), as AddressSanitizer
// knows it. ThreadSanitizer takes all fibers of a thread for that thread, which they are.
#ifndef FSDP_TRAIN_TESTS_EMULATED_FIBER_H_
#define FSDP_TRAIN_TESTS_EMULATED_FIBER_H_

#include <cstddef>
#include <vector>

namespace fsdp {

// Ends at an inaccessible page. Memory of the system, taken as it is touched.
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

// Where a fiber, or the thread itself, goes on.
struct FiberContext {
  void* stack_pointer = nullptr;
  const void* bottom = nullptr;  // Of its stack, for AddressSanitizer.
  size_t bytes = 0;
};

// A fiber that begins with entry() on this stack. It must never return.
FiberContext MakeFiber(const FiberStack& stack, void (*entry)());

// Leaves `from` for `to`, and returns when somebody switches to `from`. `ends`: nobody will.
void SwitchFiber(FiberContext& from, const FiberContext& to, bool ends = false);
// First in an entry: the context that it came from is told where its stack lies.
void BeginFiber(FiberContext& from);
// What lies on the stack of a fiber that was left for good is nobody's. Part of MakeFiber().
void ForgetFiber(const FiberStack& stack);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_FIBER_H_
