#include "trainer/runtime/sim/sim_device.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/round_up.h"

namespace fsdp {
namespace {

void Merge(VectorClock& clock, const VectorClock& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (size_t s = 0; s < other.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}

}  // namespace

class SimEvent final : public Event {
 public:
  SimEvent(const SimDevice& device, size_t stream, double time, VectorClock before)
      : host_(device.host_),
        by_waits_(device.model_.ready_when_waited_for),
        stream_(stream),
        time_(time),
        before_(std::move(before)) {}
  bool Ready() const override {
    if (!by_waits_) return time_ <= host_->time;
    return stream_ < host_->done.size() && before_[stream_] <= host_->done[stream_];
  }
  void Block() const override {
    host_->time = std::max(host_->time, time_);
    Merge(host_->done, before_);
  }
  double time() const { return time_; }
  const VectorClock& before() const { return before_; }

 private:
  double DoTime() const override { return time_; }

  const std::shared_ptr<SimDevice::Host> host_;
  const bool by_waits_;
  const size_t stream_;
  const double time_;
  const VectorClock before_;  // What is over when it passes, itself counted.
};

class SimStream final : public Stream {
 public:
  SimStream(SimDevice& device, std::string name, int threads)
      : Stream(device, std::move(name)),
        sim_(device),
        index_(device.streams_++),
        threads_(threads) {
    clock_.resize(index_ + 1);
  }
  ~SimStream() override {
    sim_.host_->time = std::max(sim_.host_->time, tail_);
    Merge(sim_.host_->done, clock_);
  }

 private:
  void DoEnqueue(Operation operation) override {
    const SimModel& model = sim_.model_;
    sim_.host_->time += model.s_per_enqueue;
    const double begin = std::max(sim_.host_->time, tail_);
    double seconds = 0;
    for (const KernelCost& kernel : operation.costs) {
      const Cost& cost = kernel.cost;
      seconds += std::max(cost.flops * model.s_per_flop,
                          (cost.bytes_read + cost.bytes_written) * model.s_per_byte) +
                 cost.link_bytes * model.s_per_link_byte +
                 cost.link_messages * model.s_per_link_message;
      if (kernel.kind == KernelKind::kProduct) CountProduct();
    }
    if (sim_.observer_) sim_.observer_(operation, *this);
    Advance(operation.name, begin, begin + seconds, BytesMoved(operation.costs));
  }
  std::shared_ptr<Event> DoRecord(bool) override {
    ++clock_[index_];
    return std::make_shared<SimEvent>(sim_, index_, std::max(tail_, sim_.host_->time), clock_);
  }
  void DoWait(const EventPtr& event) override {
    Merge(clock_, static_cast<const SimEvent&>(*event).before());
    const double begin = std::max(sim_.host_->time, tail_);
    Advance("wait", begin, std::max(begin, static_cast<const SimEvent&>(*event).time()), 0);
  }

  void CountProduct() {
    if (multiplies_ || sim_.plans_for_ != DeviceType::kCpu) return;
    multiplies_ = true;
    sim_.multiplying_ += threads_;
  }

  void Advance(const char* what, double begin, double end, int64_t bytes) {
    tail_ = end;
    if (sim_.tracing_) sim_.spans_.push_back({what, name(), begin, end, tag(), bytes});
  }

  SimDevice& sim_;
  const size_t index_;
  const int threads_;
  bool multiplies_ = false;
  double tail_ = 0;    // When the work enqueued so far is done.
  VectorClock clock_;  // What it comes behind, its own events counted.
};

// Each device has 2^44 bytes of addresses for itself, above all that a process on x86-64 can have:
// a checker that follows several devices never takes one's memory for another's.
SimDevice::SimDevice(SimModel model, std::shared_ptr<StreamChecker> checker, DeviceType plans_for)
    : Device(std::move(checker)), model_(model), plans_for_(plans_for) {
  static std::atomic<uintptr_t> next_device{8};
  next_ = next_device.fetch_add(1, std::memory_order_relaxed) << 44;
}

std::unique_ptr<Stream> SimDevice::CreateStream(std::string name, int threads, StreamPriority) {
  threads_ += threads;
  return std::make_unique<SimStream>(*this, std::move(name), threads);
}

void SimDevice::StartTrace() { tracing_ = true; }

std::vector<Span> SimDevice::TakeTrace() {
  tracing_ = false;
  return ByStreamAndTime(std::exchange(spans_, {}));
}

std::byte* SimDevice::DoAllocate(int64_t bytes, MemoryPlace place) {
  constexpr int64_t kPage = 4096;
  if (place == MemoryPlace::kDevice && bytes > model_.capacity_bytes - allocated_) {
    throw MemoryError("the simulated device is full: " + std::to_string(bytes) + " bytes wanted, " +
                      std::to_string(allocated_) + " of " + std::to_string(model_.capacity_bytes) +
                      " in use");
  }
  if (place == MemoryPlace::kDevice) allocated_ += bytes;
  peak_ = std::max(peak_, allocated_);
  auto* data = reinterpret_cast<std::byte*>(next_);
  next_ += RoundUp(bytes, kPage);
  return data;
}

void SimDevice::DoFree(std::byte*, int64_t bytes, MemoryPlace place) noexcept {
  if (place == MemoryPlace::kDevice) allocated_ -= bytes;
}

}  // namespace fsdp
