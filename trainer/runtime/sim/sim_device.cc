#include "trainer/runtime/sim/sim_device.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "trainer/core/check.h"
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
  SimEvent(const SimDevice& device, size_t stream, Timeline::MarkPtr mark, VectorClock before)
      : host_(device.host_),
        by_waits_(device.model_.ready_when_waited_for),
        stream_(stream),
        mark_(std::move(mark)),
        before_(std::move(before)) {}
  bool Ready() const override {
    if (by_waits_) return stream_ < host_->done.size() && before_[stream_] <= host_->done[stream_];
    if (!mark_->passed) host_->timeline.AdvanceTo(host_->time);
    return mark_->passed;
  }
  void Block() const override {
    host_->WaitFor(*mark_);
    Merge(host_->done, before_);
  }
  const Timeline::MarkPtr& mark() const { return mark_; }
  const VectorClock& before() const { return before_; }
  const std::shared_ptr<SimDevice::Host>& host() const { return host_; }

 private:
  double DoTime() const override {
    FSDP_CHECK(mark_->passed) << "the time of an event that the host has not come to";
    return mark_->time;
  }

  const std::shared_ptr<SimDevice::Host> host_;
  const bool by_waits_;
  const size_t stream_;
  const Timeline::MarkPtr mark_;
  const VectorClock before_;  // All that is over when the event passes, itself included.
};

class SimStream final : public Stream {
 public:
  SimStream(SimDevice& device, std::string name, int threads)
      : Stream(device, std::move(name)),
        sim_(device),
        index_(device.host_->timeline.AddStream()),
        threads_(threads) {
    clock_.resize(index_ + 1);
  }
  ~SimStream() override {
    host().timeline.AdvanceTo(host().time);
    host().WaitFor(*host().timeline.AddMark(index_, host().time));
    Merge(host().done, clock_);
  }

 private:
  void DoEnqueue(Operation operation) override {
    host().time += sim_.model_.s_per_enqueue;
    SimWork work;
    if (sim_.next_work_) {
      work = *std::exchange(sim_.next_work_, std::nullopt);
    } else {
      work = sim_.model_.price ? sim_.model_.price(operation, *this) : ByUnits(operation);
    }
    for (const KernelCost& kernel : operation.costs) {
      if (kernel.kind == KernelKind::kProduct) CountProduct();
    }
    if (sim_.observer_) sim_.observer_(operation, *this);
    host().timeline.AddWork(index_, host().time, work,
                            {operation.name, tag(), BytesMoved(operation.costs)});
  }
  std::shared_ptr<Event> DoRecord(bool) override {
    host().time += sim_.model_.s_per_event;
    ++clock_[index_];
    return std::make_shared<SimEvent>(sim_, index_, host().timeline.AddMark(index_, host().time),
                                      clock_);
  }
  void DoWait(const EventPtr& event) override {
    host().time += sim_.model_.s_per_wait;
    const auto& awaited = static_cast<const SimEvent&>(*event);
    Merge(clock_, awaited.before());
    const Timeline::Label label{"wait", tag(), 0};
    if (awaited.host() == sim_.host_) {
      host().timeline.AddWait(index_, host().time, awaited.mark(), label);
    } else {  // Another device's time is its own: worked out here and now.
      if (!awaited.mark()->passed) awaited.host()->timeline.AdvanceUntil(*awaited.mark());
      host().timeline.AddWork(index_, host().time, {.not_before = awaited.mark()->time}, label);
    }
  }

  SimDevice::Host& host() { return *sim_.host_; }

  SimWork ByUnits(const Operation& operation) const {
    const SimModel& model = sim_.model_;
    SimWork work;
    for (const KernelCost& kernel : operation.costs) {
      const Cost& cost = kernel.cost;
      work.seconds += std::max(cost.flops * model.s_per_flop,
                               (cost.bytes_read + cost.bytes_written) * model.s_per_byte) +
                      cost.link_bytes * model.s_per_link_byte +
                      cost.link_messages * model.s_per_link_message;
    }
    return work;
  }

  void CountProduct() {
    if (multiplies_ || sim_.plans_for_ != DeviceType::kCpu) return;
    multiplies_ = true;
    sim_.multiplying_ += threads_;
  }

  SimDevice& sim_;
  const size_t index_;
  const int threads_;
  bool multiplies_ = false;
  VectorClock clock_;  // All that its next work comes behind, its own events included.
};

void SimDevice::Host::WaitFor(const Timeline::Mark& mark) {
  if (!mark.passed) timeline.AdvanceUntil(mark);
  Work(mark.time - time, "wait");
}

void SimDevice::Host::Work(double seconds, const char* what) {
  if (seconds <= 0) return;
  if (traced) spans.push_back({what, "host", time, time + seconds, /*tag=*/0, /*bytes=*/0});
  time += seconds;
}

// Each device has 2^44 bytes of addresses for itself, above all that a process on x86-64 can have:
// a checker that follows several devices never takes one's memory for another's.
SimDevice::SimDevice(SimModel model, std::shared_ptr<StreamChecker> checker, DeviceType plans_for)
    : Device(std::move(checker)),
      model_(std::move(model)),
      plans_for_(plans_for),
      host_(std::make_shared<Host>(model_)) {
  static std::atomic<uintptr_t> next_device{8};
  next_ = next_device.fetch_add(1, std::memory_order_relaxed) << 44;
}

std::unique_ptr<Stream> SimDevice::CreateStream(std::string name, int threads, StreamPriority) {
  threads_ += threads;
  streams_.push_back(name);
  return std::make_unique<SimStream>(*this, std::move(name), threads);
}

void SimDevice::StartTrace() {
  host_->timeline.AdvanceTo(host_->time);
  host_->timeline.Observe(
      [this](size_t stream, const Timeline::Label& label, double begin, double end) {
        host_->spans.push_back({label.name, streams_[stream], begin, end, label.tag, label.bytes});
      });
}

std::vector<Span> SimDevice::TakeTrace() {
  host_->timeline.AdvanceTo(host_->time);
  host_->traced = false;
  host_->timeline.Observe(nullptr);
  return ByStreamAndTime(std::exchange(host_->spans, {}));
}

std::byte* SimDevice::DoAllocate(int64_t bytes, MemoryPlace place) {
  constexpr int64_t kPage = 4096;
  if (place == MemoryPlace::kDevice && bytes > model_.capacity_bytes - allocated_) {
    throw MemoryError("the simulated device is full: " + std::to_string(bytes) + " bytes wanted, " +
                      std::to_string(allocated_) + " of " + std::to_string(model_.capacity_bytes) +
                      " in use");
  }
  if (place == MemoryPlace::kDevice) {
    allocated_ += bytes;
    host_->Work(SecondsToTake(bytes), "memory");
  }
  peak_ = std::max(peak_, allocated_);
  auto* data = reinterpret_cast<std::byte*>(next_);
  next_ += RoundUp(bytes, kPage);
  return data;
}

void SimDevice::DoFree(std::byte*, int64_t bytes, MemoryPlace place) noexcept {
  if (place != MemoryPlace::kDevice) return;
  allocated_ -= bytes;
  host_->Work(SecondsToTake(bytes), "memory");
}

}  // namespace fsdp
