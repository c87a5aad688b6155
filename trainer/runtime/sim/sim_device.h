// The simulated device: the same program, no tensor data. Kernels are never called; an operation
// takes the time that its cost is worth on a described machine, memory is addresses alone. With a
// SimModel of zeros, work is free and only order and memory are left: the memory plan.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SIM_SIM_DEVICE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SIM_SIM_DEVICE_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "trainer/runtime/device.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

struct SimModel {
  // Seconds per unit; each kernel of an operation takes the larger of its compute and memory time,
  // plus its link time (alpha-beta model: messages x latency + bytes x time a byte).
  double s_per_flop = 0;
  double s_per_byte = 0;
  double s_per_link_byte = 0;
  double s_per_link_message = 0;
  double s_per_enqueue = 0;  // Of the host.
  int64_t capacity_bytes = std::numeric_limits<int64_t>::max();
  // An event is Ready() once the host has waited for it or for what comes behind it, and no sooner:
  // so late that no timing lets it be later.
  bool ready_when_waited_for = false;
};

class SimDevice final : public Device {
 public:
  // `plans_for`: a device with kernels.
  explicit SimDevice(SimModel model = {}, std::shared_ptr<StreamChecker> checker = nullptr,
                     DeviceType plans_for = DeviceType::kCpu);

  DeviceType type() const override { return DeviceType::kSim; }
  DeviceType kernel_type() const override { return plans_for_; }
  std::unique_ptr<Stream> CreateStream(std::string name, int threads = 1,
                                       StreamPriority priority = StreamPriority::kNormal) override;
  double Now() const override { return host_->time; }  // The simulated host's time.
  void StartTrace() override;
  std::vector<Span> TakeTrace() override;

  // Called with each operation from now on, and its stream, where it is enqueued.
  using Observer = std::function<void(const Operation&, const Stream&)>;
  void Observe(Observer observer) { observer_ = std::move(observer); }

  // CPU threads that all streams so far have asked for.
  int threads() const { return threads_; }
  // Those of the streams that have multiplied matrices by kernels of the CPU.
  int multiplying() const { return multiplying_; }
  int64_t allocated_bytes() const { return allocated_; }  // Of device memory.
  int64_t peak_bytes() const { return peak_; }

 private:
  friend class SimStream;
  friend class SimEvent;
  // Shared: an event may outlive its device.
  struct Host {
    double time = 0;
    VectorClock done;  // By stream: of its operations so many, as far as the host has waited.
  };
  std::byte* DoAllocate(int64_t bytes, MemoryPlace place) override;
  void DoFree(std::byte* data, int64_t bytes, MemoryPlace place) noexcept override;

  SimModel model_;
  const DeviceType plans_for_;
  std::shared_ptr<Host> host_ = std::make_shared<Host>();
  size_t streams_ = 0;
  int threads_ = 0, multiplying_ = 0;
  uintptr_t next_;  // Address of the next allocation.
  int64_t allocated_ = 0, peak_ = 0;
  Observer observer_;
  bool tracing_ = false;
  std::vector<Span> spans_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SIM_SIM_DEVICE_H_
