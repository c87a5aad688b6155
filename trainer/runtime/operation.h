// An operation: what Stream::Enqueue() takes (stream.h).
// Tests: tests/trainer/runtime/cpu/cpu_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_OPERATION_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_OPERATION_H_

#include <vector>

#include "trainer/runtime/cost.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/range.h"

namespace fsdp {

// The work itself, for each type of device: a device runs its own kernel and ignores the others.
// The sim device runs none and needs none.
//   Throwing  A device's kernel does not throw: on a GPU it cannot. The host checks data before the
//             work is enqueued. Two kinds of CPU work do throw, and so fail the stream:
//             communicators (CommError) and host work such as loading a batch.
//   Host      Work of the host in a stream's order, on host and pinned memory alone. A device with
//             no kernel of its own for the operation runs it on a thread of the stream.
struct DeviceKernels {
  CpuKernel cpu = nullptr;
  CudaKernel cuda = nullptr;
  CpuKernel host = nullptr;
};

// `name` must outlive the program (a literal). Reads and writes are all the memory that the kernels
// touch, Views among their arguments included. Memory that is read and written goes into `writes`.
struct Operation {
  const char* name = "";
  std::vector<Range> reads;
  std::vector<Range> writes;
  std::vector<KernelCost> costs;  // By kernel, in the order in which they run.
  DeviceKernels kernels = {};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_OPERATION_H_
