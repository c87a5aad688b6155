#include "trainer/runtime/cuda/failures.h"

#include <algorithm>
#include <utility>

namespace fsdp {

void Merge(const VectorClock& from, VectorClock& into) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t s = 0; s < from.size(); ++s) into[s] = std::max(into[s], from[s]);
}

int Failures::AddStream() {
  std::lock_guard lock(mutex_);
  streams_.emplace_back();
  return static_cast<int>(streams_.size()) - 1;
}

void Failures::Fail(int stream, uint64_t ticket, std::exception_ptr error,
                    const StreamPosition& at) {
  std::lock_guard lock(mutex_);
  First& first = streams_[stream];
  if (first.ticket != 0 && first.ticket <= ticket) return;
  first = {ticket, std::move(error), at};
  any_.store(true, std::memory_order_release);
}

void Failures::FailDevice(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (device_) return;
  device_ = std::move(error);
  device_failed_.store(true, std::memory_order_release);
}

std::exception_ptr Failures::Find(int stream, const VectorClock& before) const {
  if (!any_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(mutex_);
  const First* found = nullptr;
  for (size_t s = 0; s < before.size(); ++s) {
    const First& first = streams_[s];
    if (first.ticket == 0 || first.ticket > before[s]) continue;
    if (static_cast<int>(s) == stream) return first.error;
    if (found == nullptr || first.ticket < found->ticket) found = &first;
  }
  return found ? found->error : nullptr;
}

std::exception_ptr Failures::device_error() const {
  if (!device_failed()) return nullptr;
  std::lock_guard lock(mutex_);
  return device_;
}

std::optional<StreamPosition> Failures::Position(int stream) const {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard lock(mutex_);
  const First& first = streams_[stream];
  return first.ticket == 0 ? std::nullopt : std::optional(first.at);
}

}  // namespace fsdp
