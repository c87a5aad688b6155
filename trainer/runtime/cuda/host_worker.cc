#include "trainer/runtime/cuda/host_worker.h"

#include <atomic>
#include <exception>
#include <utility>

#include "trainer/runtime/cuda/cuda_call.h"

namespace fsdp {

HostWorker::HostWorker(GpuState& state, int stream, int threads, uint32_t* reached, uint32_t* done)
    : state_(state),
      stream_(stream),
      reached_(reached),
      done_(done),
      pool_(threads, /*spin=*/false),
      thread_([this] { Work(); }) {}

HostWorker::~HostWorker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void HostWorker::Push(HostTask task) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
}

std::optional<StreamPosition> HostWorker::Position() const {
  std::lock_guard lock(mutex_);
  return position_;
}

void HostWorker::Work() {
  FlushSubnormals();
  for (;;) {
    HostTask task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    Run(task);
    const auto ticket = static_cast<uint32_t>(task.ticket);
    task = {};
    {
      std::lock_guard lock(mutex_);
      position_.reset();
    }
    std::atomic_ref(*done_).store(ticket, std::memory_order_release);
  }
}

bool HostWorker::Reached(uint32_t ticket) const {
  const auto reached = [&] {
    return static_cast<int32_t>(std::atomic_ref(*reached_).load(std::memory_order_acquire) -
                                ticket) >= 0;
  };
  Await([&] { return reached() || state_.failures.device_failed(); });
  return reached();
}

void HostWorker::Run(const HostTask& task) {
  if (!Reached(static_cast<uint32_t>(task.ticket))) return;
  if (state_.failures.Find(stream_, task.clock)) return;
  {
    std::lock_guard lock(mutex_);
    position_ = task.at;
  }
  try {
    task.kernel ? task.kernel(pool_) : task.awaited->Block();
  } catch (...) {
    state_.failures.Fail(stream_, task.ticket, std::current_exception(), task.at);
  }
}

}  // namespace fsdp
