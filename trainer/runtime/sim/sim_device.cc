#include "trainer/runtime/sim/sim_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

class SimEvent final : public Event {
 public:
  SimEvent(double& host, double time) : host_(host), time_(time) {}
  bool Ready() const override { return time_ <= host_; }
  void Block() const override { host_ = std::max(host_, time_); }
  double Time() const override { return time_; }

 private:
  double& host_;
  double time_;
};

}  // namespace

class SimStream final : public Stream {
 public:
  SimStream(SimDevice& device, std::string name) : Stream(device, std::move(name)), sim_(device) {}

 private:
  void DoEnqueue(const Operation& operation, Kernel) override {
    const SimModel& model = sim_.model_;
    const Cost& cost = operation.cost;
    sim_.host_ += model.s_per_enqueue;
    const double begin = std::max(sim_.host_, tail_);
    tail_ = begin +
            std::max(cost.flops * model.s_per_flop,
                     (cost.bytes_read + cost.bytes_written) * model.s_per_byte) +
            cost.link_bytes * model.s_per_link_byte + cost.link_messages * model.s_per_link_message;
    if (sim_.tracing_) sim_.spans_.push_back({operation.name, name(), begin, tail_});
  }
  std::shared_ptr<Event> DoRecord() override {
    return std::make_shared<SimEvent>(sim_.host_, std::max(tail_, sim_.host_));
  }
  void DoWait(const EventPtr& event) override { tail_ = std::max(tail_, event->Time()); }

  SimDevice& sim_;
  double tail_ = 0;  // When the work enqueued so far is done.
};

std::unique_ptr<Stream> SimDevice::CreateStream(std::string name, int) {
  return std::make_unique<SimStream>(*this, std::move(name));
}

void SimDevice::StartTrace() { tracing_ = true; }

std::vector<Span> SimDevice::TakeTrace() {
  tracing_ = false;
  return std::exchange(spans_, {});
}

std::byte* SimDevice::DoAllocate(int64_t bytes) {
  constexpr int64_t kPage = 4096;
  if (bytes > model_.capacity_bytes - allocated_) {
    throw MemoryError("the simulated device is full: " + std::to_string(bytes) + " bytes wanted, " +
                      std::to_string(allocated_) + " of " + std::to_string(model_.capacity_bytes) +
                      " in use");
  }
  allocated_ += bytes;
  peak_ = std::max(peak_, allocated_);
  auto* data = reinterpret_cast<std::byte*>(next_);
  next_ += (bytes + kPage - 1) / kPage * kPage;
  return data;
}

void SimDevice::DoFree(std::byte*, int64_t bytes) noexcept { allocated_ -= bytes; }

}  // namespace fsdp
