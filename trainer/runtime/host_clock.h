// A device whose host has simulated time. Host work that enqueues nothing is reported to it.
// Tests: tests/trainer/runtime/sim/sim_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_HOST_CLOCK_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_HOST_CLOCK_H_

namespace fsdp {

class HostClock {
 public:
  virtual void CountBlock() = 0;  // A caching allocator has given out a block.

 protected:
  ~HostClock() = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_HOST_CLOCK_H_
