#include "trainer/runtime/stream.h"

#include <stdexcept>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/operation.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

bool HasKernel(const DeviceKernels& kernels, DeviceType device) {
  switch (device) {
    case DeviceType::kCpu:
      return kernels.cpu || kernels.host;
    case DeviceType::kCuda:
      return kernels.cuda || kernels.host;
    case DeviceType::kSim:
      return true;
  }
  return false;
}

}  // namespace

void Event::Synchronize() const {
  try {
    Block();
  } catch (...) {
    if (checker_) checker_->OnHostWaitFailed(checker_stream_, clock_);
    throw;
  }
  if (checker_) checker_->OnHostWait(clock_);
}

double Event::Time() const {
  FSDP_CHECK(timed_) << "an event that was not recorded with its time";
  return DoTime();
}

void Event::OrderBefore(int stream) const {
  if (checker_) checker_->OnWait(stream, clock_);
}

Stream::Stream(Device& device, std::string name)
    : device_(device), name_(std::move(name)), checker_(device.checker()) {
  if (checker_) checker_stream_ = checker_->AddStream(name_);
}

Stream::~Stream() {
  if (checker_) checker_->OnStreamEnd(checker_stream_);
}

void Stream::Enqueue(Operation operation) {
  if (!HasKernel(operation.kernels, device_.type())) {
    throw std::invalid_argument("[Enqueue] " + std::string(operation.name) + " has no kernel for " +
                                Name(device_.type()));
  }
  if (checker_) {
    checker_->OnOperation(checker_stream_, operation.name, operation.reads, operation.writes);
  }
  DoEnqueue(std::move(operation));
}

EventPtr Stream::Record() { return Recorded(/*timed=*/false); }
EventPtr Stream::RecordTime() { return Recorded(/*timed=*/true); }

EventPtr Stream::Recorded(bool timed) {
  std::shared_ptr<Event> event = DoRecord(timed);
  event->timed_ = timed;
  event->simulated_ = device_.type() == DeviceType::kSim;
  if (checker_) {
    event->checker_ = checker_;
    event->checker_stream_ = checker_stream_;
    event->clock_ = checker_->OnRecord(checker_stream_);
  }
  return event;
}

void Stream::Wait(const EventPtr& event) {
  if (event == nullptr) return;
  if (event->simulated_ != (device_.type() == DeviceType::kSim)) {
    throw std::invalid_argument(
        "[Wait] an event of simulated time on a stream of real time, or the "
        "reverse: " +
        name_);
  }
  FSDP_CHECK(event->checker_ == checker_) << "streams that wait for each other share a checker";
  if (checker_) checker_->OnWait(checker_stream_, event->clock_);
  DoWait(event);
}

}  // namespace fsdp
