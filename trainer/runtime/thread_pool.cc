#include "trainer/runtime/thread_pool.h"

#include <immintrin.h>

#include <algorithm>

#include "trainer/core/check.h"
#include "trainer/runtime/futex.h"

namespace fsdp {
namespace {

// Polls of an atomic before sleeping: about 50 us, more than the serial stretches between two
// parallel loops of a step and less than a time slice.
constexpr int kSpins = 1000;

void AwaitChange(const std::atomic<uint32_t>& value, uint32_t old, bool spin) {
  if (spin) {
    for (int i = 0; i < kSpins; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      __builtin_ia32_pause();
    }
  }
  SleepWhile(value, old);
}

}  // namespace

void FlushSubnormals() {
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
}

ThreadPool::ThreadPool(int threads, bool spin) : spin_(spin), errors_(threads) {
  FSDP_CHECK_LE(1, threads);
  try {
    for (int t = 1; t < threads; ++t) helpers_.emplace_back([this, t] { Help(t); });
  } catch (...) {
    Join();
    throw;
  }
}

ThreadPool::~ThreadPool() { Join(); }

void ThreadPool::Join() noexcept {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  WakeAll(generation_);
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Help(int t) {
  FlushSubnormals();
  for (uint32_t seen = 0;;) {
    AwaitChange(generation_, seen, spin_);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    try {
      (*task_)(t);
    } catch (...) {
      errors_[t] = std::current_exception();
    }
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) WakeAll(running_);
  }
}

void ThreadPool::Run(const std::function<void(int)>& task) {
  if (helpers_.empty()) return task(0);
  task_ = &task;
  std::fill(errors_.begin(), errors_.end(), nullptr);
  running_.store(static_cast<uint32_t>(helpers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  WakeAll(generation_);
  try {
    task(0);
  } catch (...) {
    errors_[0] = std::current_exception();
  }
  for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) {
    AwaitChange(running_, left, spin_);
  }
  for (const std::exception_ptr& error : errors_) {
    if (error) std::rethrow_exception(error);
  }
}

std::pair<int64_t, int64_t> ThreadPool::Part(int64_t n, int64_t grain, int parts, int t) {
  FSDP_CHECK_LE(1, grain);
  const int64_t grains = (n + grain - 1) / grain;
  const auto border = [&](int64_t p) { return std::min(n, grains * p / parts * grain); };
  return {border(t), border(t + 1)};
}

void ThreadPool::ParallelFor(int64_t n, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body) {
  FSDP_CHECK_LE(1, grain);
  if (size() == 1 || n <= grain) {
    if (n > 0) body(0, n);
    return;
  }
  Run([&](int t) {
    const auto [begin, end] = Part(n, grain, size(), t);
    if (begin < end) body(begin, end);
  });
}

}  // namespace fsdp
