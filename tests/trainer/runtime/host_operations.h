// Operations whose work is the host's, so that any device runs them that runs kernels.
#ifndef FSDP_TRAIN_TESTS_TRAINER_RUNTIME_HOST_OPERATIONS_H_
#define FSDP_TRAIN_TESTS_TRAINER_RUNTIME_HOST_OPERATIONS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "trainer/runtime/device.h"
#include "trainer/runtime/futex.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

// An operation that is not done before Open(), on a device that runs kernels; on another device,
// not before the host's time has moved past its cost.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  ~Gate() { Open(); }

  void Enqueue(Stream& stream) {
    Operation operation;
    operation.name = "gate";
    operation.costs = {Cost{.flops = 1}};
    operation.kernels.host = [open = open_](ThreadPool&) { SleepWhile(*open, 0); };
    stream.Enqueue(std::move(operation));
  }
  void Open() {
    open_->store(1, std::memory_order_release);
    WakeAll(*open_);
  }

 private:
  // Shared: the kernel may outlive the test that opened it.
  std::shared_ptr<std::atomic<uint32_t>> open_ = std::make_shared<std::atomic<uint32_t>>(0);
};

inline void Nothing(ThreadPool&) {}

inline Operation Priced(const char* name, CpuKernel kernel = Nothing) {
  Operation operation;
  operation.name = name;
  operation.costs = {Cost{.flops = 1}};
  operation.kernels.host = std::move(kernel);
  return operation;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_RUNTIME_HOST_OPERATIONS_H_
