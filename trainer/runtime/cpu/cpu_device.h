// The CPU as an asynchronous device: a stream is a FIFO worker thread with compute threads of its
// own, an event is a flag that its worker sets. Device memory has addresses that the host may not
// touch (kDeviceAddress): a program that does fails here already, not first on a GPU. Kernels take
// and make no subnormal numbers: see FlushSubnormals().
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CPU_CPU_DEVICE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CPU_CPU_DEVICE_H_

#include <atomic>
#include <memory>
#include <mutex>

#include "trainer/runtime/device.h"

namespace fsdp {

class StreamChecker;

struct CpuOptions {
  bool spin = false;  // Compute threads poll between loops: see ThreadPool.
  std::shared_ptr<StreamChecker> checker;
};

class CpuStream;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options = {}) : Device(options.checker), options_(options) {}

  DeviceType type() const override { return DeviceType::kCpu; }
  std::unique_ptr<Stream> CreateStream(std::string name, int threads = 1,
                                       StreamPriority priority = StreamPriority::kNormal) override;
  std::optional<View> OnHost(const View& view) const override;
  double Now() const override;  // std::chrono::steady_clock.
  void StartTrace() override;
  std::vector<Span> TakeTrace() override;

  // For ThreadSanitizer: a queue's own lock orders host and worker and so hides a missing wait.
  // Nothing enqueued after Park() starts before Release(). Nobody may Synchronize in between. A
  // stream that is destroyed in between runs its queue.
  void Park();
  void Release();

  int64_t allocated_bytes() const { return allocated_; }

 private:
  friend class CpuStream;
  std::byte* DoAllocate(int64_t bytes, MemoryPlace place) override;
  void DoFree(std::byte* data, int64_t bytes, MemoryPlace place) noexcept override;

  CpuOptions options_;
  std::atomic<int64_t> allocated_{0};
  std::atomic<bool> tracing_{false};
  std::atomic<bool> parked_{false};
  std::mutex mutex_;  // Guards what follows.
  std::vector<CpuStream*> streams_;
  std::vector<Span> spans_of_ended_;  // From streams that are gone.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CPU_CPU_DEVICE_H_
