// The simulated device: the same program, no tensor data. Kernels are never called; an operation
// takes the time that its cost is worth on a described machine, memory is addresses alone. With a
// SimModel of zeros, work is free and only order and memory are left: the memory plan.
//
// When an operation ends depends on what runs beside it, and so on what is enqueued later
// (timeline.h): an event's time is known once the host has come to it. The host knows of its own
// time alone, and of what has passed by then.
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
#include "trainer/runtime/sim/timeline.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

struct SimModel {
  // What an operation takes on this stream. Null: seconds per unit, as follows, and nothing is
  // shared; each kernel takes the larger of its compute and memory time, plus its link time
  // (alpha-beta model: messages x latency + bytes x time a byte).
  std::function<SimWork(const Operation& operation, const Stream& stream)> price = nullptr;
  double s_per_flop = 0;
  double s_per_byte = 0;
  double s_per_link_byte = 0;
  double s_per_link_message = 0;
  std::vector<SimOverlap> overlaps = {};
  // Seconds of the host: to enqueue an operation, an event, and a wait for one, to take a block
  // from a caching allocator, and to take device memory or give it back.
  double s_per_enqueue = 0, s_per_event = 0, s_per_wait = 0, s_per_block = 0;
  double s_per_segment = 0, s_per_segment_byte = 0;
  int64_t capacity_bytes = std::numeric_limits<int64_t>::max();
  // An event is Ready() once the host has waited for it or for what comes behind it, and no sooner:
  // so late that no timing lets it be later.
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
  // The trace that begins here has the host, too, as a stream of that name: "wait" is what it waits
  // for, "memory" what it takes of the device or gives back.
  void StartTraceWithHost() {
    StartTrace();
    host_->traced = true;
  }
  void CountBlock() override { host_->time += model_.s_per_block; }

  // The next operation takes this, and is not priced: for collectives, which know of their peers.
  void PriceNext(const SimWork& work) { next_work_ = work; }

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
    explicit Host(const SimModel& model) : timeline(model.overlaps) {}

    Timeline timeline;
    double time = 0;
    VectorClock done;     // By stream: of its operations so many, as far as the host has waited.
    bool traced = false;  // Its own time.
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
