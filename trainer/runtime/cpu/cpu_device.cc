#include "trainer/runtime/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"
#include "trainer/runtime/futex.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

class CpuEvent final : public Event {
 public:
  bool Ready() const override { return state_.load(std::memory_order_acquire) != kPending; }
  void Block() const override {
    SleepWhile(state_, kPending);
    if (error_) std::rethrow_exception(error_);
  }

  void Pass(std::exception_ptr error, double time) {
    error_ = std::move(error);
    time_ = time;
    state_.store(kPassed, std::memory_order_release);
    WakeAll(state_);
  }

 private:
  static constexpr uint32_t kPending = 0, kPassed = 1;

  double DoTime() const override { return time_; }

  std::atomic<uint32_t> state_{kPending};
  std::exception_ptr error_;
  double time_ = 0;
};

}  // namespace

class CpuStream final : public Stream {
 public:
  CpuStream(CpuDevice& device, std::string name, int threads)
      : Stream(device, std::move(name)),
        device_(device),
        pool_(threads, device.options_.spin),
        worker_([this] { Work(); }) {
    std::lock_guard lock(device_.mutex_);
    device_.streams_.push_back(this);
  }

  ~CpuStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    worker_.join();
    std::lock_guard lock(device_.mutex_);
    std::erase(device_.streams_, this);
    MoveSpans(device_.spans_of_ended_);
  }

 private:
  friend class CpuDevice;

  struct Task {
    const char* name = "";
    CpuKernel kernel;                 // Empty for an event.
    std::shared_ptr<CpuEvent> event;  // To pass.
    EventPtr awaited;
    uint64_t tag = 0;
    int64_t bytes = 0;
  };

  std::optional<StreamPosition> Position() const override {
    const char* const name = operation_.load(std::memory_order_acquire);
    if (name == nullptr) return std::nullopt;
    return StreamPosition{name, operation_tag_.load(std::memory_order_relaxed)};
  }

  void DoEnqueue(Operation operation) override {
    DeviceKernels& kernels = operation.kernels;
    Push({operation.name, std::move(kernels.cpu ? kernels.cpu : kernels.host), nullptr, nullptr,
          tag(), BytesMoved(operation.costs)});
  }
  std::shared_ptr<Event> DoRecord(bool) override {
    auto event = std::make_shared<CpuEvent>();
    Push({"", nullptr, event, nullptr, tag()});
    return event;
  }
  void DoWait(const EventPtr& event) override { Push({"wait", nullptr, nullptr, event, tag()}); }

  void MoveSpans(std::vector<Span>& to) {
    std::move(spans_.begin(), spans_.end(), std::back_inserter(to));
    spans_.clear();
  }

  void Push(Task task) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

  void Work() {
    FlushSubnormals();
    std::exception_ptr error;  // The error that failed this stream, if one did.
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] {
          return stop_ || (!queue_.empty() && !device_.parked_.load(std::memory_order_acquire));
        });
        if (queue_.empty()) return;
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      if (task.event) {
        task.event->Pass(error, device_.Now());
        continue;
      }
      if (error) continue;
      operation_tag_.store(task.tag, std::memory_order_relaxed);
      operation_.store(task.name, std::memory_order_release);
      const bool tracing = device_.tracing_.load(std::memory_order_relaxed);
      const double begin = tracing ? device_.Now() : 0;
      try {
        task.awaited ? task.awaited->Block() : task.kernel(pool_);
      } catch (...) {
        error = std::current_exception();
      }
      if (!error) operation_.store(nullptr, std::memory_order_release);
      if (!tracing) continue;
      spans_.push_back({task.name, name(), begin, device_.Now(), task.tag, task.bytes});
    }
  }

  CpuDevice& device_;
  ThreadPool pool_;
  std::mutex mutex_;  // Guards queue_ and stop_.
  std::condition_variable wake_;
  std::deque<Task> queue_;
  bool stop_ = false;
  std::atomic<const char*> operation_{nullptr};  // The operation that runs or has failed; null:
                                                 // none.
  std::atomic<uint64_t> operation_tag_{0};
  std::vector<Span> spans_;  // The worker's; the host takes them while the stream is idle.
  std::thread worker_;       // Last: it uses all of the above.
};

std::unique_ptr<Stream> CpuDevice::CreateStream(std::string name, int threads, StreamPriority) {
  try {
    return std::make_unique<CpuStream>(*this, name, threads);
  } catch (const std::system_error& error) {
    ThrowNoThread("the " + std::to_string(threads) + " threads of stream " + name, error);
  }
}

std::optional<View> CpuDevice::OnHost(const View& view) const { return Host(view); }

double CpuDevice::Now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void CpuDevice::StartTrace() { tracing_.store(true, std::memory_order_relaxed); }

std::vector<Span> CpuDevice::TakeTrace() {
  tracing_.store(false, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  std::vector<Span> all = std::exchange(spans_of_ended_, {});
  for (CpuStream* stream : streams_) stream->MoveSpans(all);
  return ByStreamAndTime(std::move(all));
}

void CpuDevice::Park() { parked_.store(true, std::memory_order_release); }

// With all queues locked, no worker is awake before the last of them is free again. One that woke
// earlier would hand what it has done to the next queue through the host's lock.
void CpuDevice::Release() {
  std::lock_guard lock(mutex_);
  for (CpuStream* stream : streams_) stream->mutex_.lock();
  parked_.store(false, std::memory_order_release);
  for (CpuStream* stream : streams_) stream->mutex_.unlock();
  for (CpuStream* stream : streams_) stream->wake_.notify_all();
}

// Straight from the system: what is not touched yet costs nothing, and it comes and goes whole.
std::byte* CpuDevice::DoAllocate(int64_t bytes, MemoryPlace place) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw MemoryError("cannot allocate " + std::to_string(bytes) + " bytes of host memory");
  }
  // Two thirds fewer page faults and TLB misses on a large arena; not having it is no error.
  if (bytes >= int64_t{4} << 20) madvise(data, bytes, MADV_HUGEPAGE);
  allocated_ += bytes;
  const uintptr_t bit = place == MemoryPlace::kDevice ? kDeviceAddress : 0;
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(data) | bit);
}

void CpuDevice::DoFree(std::byte* data, int64_t bytes, MemoryPlace) noexcept {
  munmap(HostAddress(data), bytes);
  allocated_ -= bytes;
}

}  // namespace fsdp
