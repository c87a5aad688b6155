// Properties of the driver's launch queues that a GPU alone shows: linked into the kit's tests
// (gpu_op_tests), and on the emulator's runtime, whose queues end as the driver's do.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/trainer/runtime/host_operations.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/cuda/cuda_device.h"

namespace fsdp {
namespace {

// Ends the program, with what the test waits for, if that does not come: nothing else can end a
// thread that stands in a call of the driver's.
class Within {
 public:
  Within(std::chrono::seconds limit, const char* what)
      : thread_([this, limit, what] {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, limit, [this] { return done_; })) return;
          std::fprintf(stderr, "not within %lld s: %s\n", static_cast<long long>(limit.count()),
                       what);
          std::_Exit(1);
        }) {}
  ~Within() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;  // Behind what it uses.
};

// 5,000 kernels of next to no work behind two tasks of the host, on one stream, and waits between
// it and another. The GPU waits for the second task: for ever, if its thread needed a lock of the
// driver's that the thread which enqueues holds, because it stands in a launch by then.
TEST(GpuQueue, TheHostThatIsFarAheadHoldsUpNoWorkOfTheHost) {
  constexpr int kKernels = 5000;
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s"), other = device->CreateStream("t");
  const Buffer on_gpu = device->Allocate(2 * sizeof(float));
  const Buffer pinned = device->Allocate(2 * sizeof(float), MemoryPlace::kPinned);
  const View sum = on_gpu.As(DType::kFloat32, {1}), one = on_gpu.As(DType::kFloat32, {1}, 4);
  Fill(*stream, 0, sum);
  Fill(*stream, 1, one);
  stream->Synchronize();
  const Within limit(std::chrono::seconds(60), "5,000 kernels behind work of the host");
  std::atomic<int> launched{0}, tasks{0};
  stream->Enqueue(Priced("first", [&](ThreadPool&) {
    // Until the host has gone as far ahead as it is let.
    for (int before = -1; launched == 0 || (launched != before && launched < kKernels);) {
      before = launched;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ++tasks;
  }));
  stream->Enqueue(Priced("second", [&](ThreadPool&) { ++tasks; }));
  for (; launched < kKernels; ++launched) {
    Accumulate(*stream, one, sum);
    if (launched % 5 != 0) continue;
    stream->Wait(other->Record());
    other->Wait(stream->Record());
  }
  Copy(*stream, sum, pinned.As(DType::kFloat32, {1}));
  stream->Synchronize();
  other->Synchronize();
  EXPECT_EQ(tasks, 2);
  EXPECT_EQ(*reinterpret_cast<const float*>(pinned.data()), kKernels);
}

}  // namespace
}  // namespace fsdp
