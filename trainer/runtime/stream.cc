#include "trainer/runtime/stream.h"

#include "trainer/runtime/device.h"

namespace fsdp {

Cost& Cost::operator+=(const Cost& other) {
  flops += other.flops;
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  link_bytes += other.link_bytes;
  link_messages += other.link_messages;
  return *this;
}

void Event::Synchronize() const {
  // Before Block(), which may throw: what came before a failed event is done or dropped as well.
  if (checker_) checker_->OnHostWait(clock_);
  Block();
}

Stream::Stream(Device& device, std::string name)
    : device_(device), name_(std::move(name)), checker_(device.checker()) {
  if (checker_) checker_stream_ = checker_->AddStream(name_);
}

void Stream::Enqueue(const Operation& operation, Kernel kernel) {
  if (checker_) {
    checker_->OnOperation(checker_stream_, operation.name, operation.reads, operation.writes);
  }
  DoEnqueue(operation, std::move(kernel));
}

EventPtr Stream::Record() {
  std::shared_ptr<Event> event = DoRecord();
  if (checker_) {
    event->checker_ = checker_;
    event->clock_ = checker_->OnRecord(checker_stream_);
  }
  return event;
}

void Stream::Wait(const EventPtr& event) {
  if (event == nullptr) return;
  if (checker_) checker_->OnWait(checker_stream_, event->clock_);
  DoWait(event);
}

}  // namespace fsdp
