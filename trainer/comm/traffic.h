// Bytes of a rank that other ranks take, counted where a transport moves them.
// Tests: tests/trainer/engine/traffic_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_TRAFFIC_H_
#define FSDP_TRAIN_TRAINER_COMM_TRAFFIC_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "trainer/comm/communicator.h"

namespace fsdp {

struct TrafficBytes {
  // Bytes of each copy that another rank makes of this rank's data, by the Collective that it
  // counts as.
  std::array<int64_t, kCollectives> taken{};
  // Bytes that this rank has put into sockets: a gathered shard once for each other host, however
  // many ranks read it there. Tensors alone, without the headers of protocols or messages about
  // calls.
  int64_t network = 0;

  int64_t of(Collective kind) const { return taken[static_cast<int>(kind)]; }
  bool operator==(const TrafficBytes&) const = default;
};

// Counts the calls of a step, whenever they run: a call carries the counter that its communicator
// had when the call was issued (Communicator::CountIn). Any thread adds. Read() has all of a
// collective once its stream has done it.
class Traffic {
 public:
  void AddTaken(Collective kind, int64_t bytes) {
    taken_[static_cast<int>(kind)].fetch_add(bytes, std::memory_order_relaxed);
  }
  void AddNetwork(int64_t bytes) { network_.fetch_add(bytes, std::memory_order_relaxed); }

  TrafficBytes Read() const {
    TrafficBytes bytes;
    for (int kind = 0; kind < kCollectives; ++kind) {
      bytes.taken[kind] = taken_[kind].load(std::memory_order_relaxed);
    }
    bytes.network = network_.load(std::memory_order_relaxed);
    return bytes;
  }
  void Clear() {
    for (std::atomic<int64_t>& taken : taken_) taken.store(0, std::memory_order_relaxed);
    network_.store(0, std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<int64_t>, kCollectives> taken_{};
  std::atomic<int64_t> network_{0};
};

// For transports: counts for the rank whose call it is.
inline void CountTaken(const CollectiveCall& call, int64_t bytes) {
  if (call.traffic) call.traffic->AddTaken(call.counts_as, bytes);
}
inline void CountNetwork(const CollectiveCall& call, int64_t bytes) {
  if (call.traffic) call.traffic->AddNetwork(bytes);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_TRAFFIC_H_
