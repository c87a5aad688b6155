// The simulated device: the same program, no tensor data. Kernels are never called. An operation
// takes the time that its cost is worth on a described machine. Memory is addresses alone. With a
// SimModel of zeros, work is free, and only order and memory are left: the memory plan.
//
// When an operation ends depends on the work beside it, some of which is enqueued later
// (timeline.h). An event's time is therefore known only once the host's time has reached it. The
// host knows its own time, and which events have passed by then.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SIM_SIM_DEVICE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SIM_SIM_DEVICE_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/runtime/device.h"
#include "trainer/runtime/host_clock.h"
#include "trainer/runtime/operation.h"
#include "trainer/runtime/sim/timeline.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

struct SimModel {
  // Prices an operation on a stream. Null: the seconds per unit below, with nothing shared. Each
  // kernel then takes the larger of its compute and memory time, plus its link time (alpha-beta
  // model: messages x latency + bytes x time a byte).
  std::function<SimWork(const Operation& operation, const Stream& stream)> price = nullptr;
  double s_per_flop = 0;
  double s_per_byte = 0;
  double s_per_link_byte = 0;
  double s_per_link_message = 0;
  std::vector<SimOverlap> overlaps = {};
  // The host's seconds to enqueue an operation, an event, or a wait for one; to take a block from a
  // caching allocator; to take device memory or give it back.
  double s_per_enqueue = 0, s_per_event = 0, s_per_wait = 0, s_per_block = 0;
  double s_per_segment = 0, s_per_segment_byte = 0;
  int64_t capacity_bytes = std::numeric_limits<int64_t>::max();
  // An event is Ready() only once the host has waited for it or for a later one: no timing makes it
  // ready later than that.
  bool ready_when_waited_for = false;
};

class SimDevice final : public Device, public HostClock {
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
  // Starts a trace that also has a stream "host". Its span "wait" is a wait of the host, "memory" a
  // block taken from the device or given back.
  void StartTraceWithHost() {
    StartTrace();
    host_->traced = true;
  }
  void CountBlock() override { host_->time += model_.s_per_block; }

  // The next operation takes `work` and is not priced: for collectives, which know their peers.
  void PriceNext(const SimWork& work) { next_work_ = work; }

  // From now on called with each enqueued operation and its stream.
  using Observer = std::function<void(const Operation&, const Stream&)>;
  void Observe(Observer observer) { observer_ = std::move(observer); }

  // CPU threads that all streams so far have asked for.
  int threads() const { return threads_; }
  // CPU threads of the streams that have multiplied matrices with CPU kernels.
  int multiplying() const { return multiplying_; }
  int64_t allocated_bytes() const { return allocated_; }  // Device memory.
  int64_t peak_bytes() const { return peak_; }

 private:
  friend class SimStream;
  friend class SimEvent;
  // Shared: an event may outlive its device.
  struct Host {
    explicit Host(const SimModel& model) : timeline(model.overlaps) {}

    Timeline timeline;
    double time = 0;
    VectorClock done;     // By stream: operations that the host has waited for.
    bool traced = false;  // The host's own time is traced.
    std::vector<Span> spans;

    void WaitFor(const Timeline::Mark& mark);
    void Work(double seconds, const char* what);
  };
  std::byte* DoAllocate(int64_t bytes, MemoryPlace place) override;
  void DoFree(std::byte* data, int64_t bytes, MemoryPlace place) noexcept override;

  double SecondsToTake(int64_t bytes) const {
    return model_.s_per_segment + model_.s_per_segment_byte * static_cast<double>(bytes);
  }

  const SimModel model_;
  const DeviceType plans_for_;
  const std::shared_ptr<Host> host_;
  std::optional<SimWork> next_work_;
  std::vector<std::string> streams_;  // Their names.
  int threads_ = 0, multiplying_ = 0;
  uintptr_t next_;  // Address of the next allocation.
  int64_t allocated_ = 0, peak_ = 0;
  Observer observer_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SIM_SIM_DEVICE_H_
