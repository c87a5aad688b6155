// The device that a program's op tests run on, chosen by what the program is linked with:
// //tests/testing:cpu_test_device, //tests/emulated:test_device or
// //tests/testing:cuda_test_device.
#ifndef FSDP_TRAIN_TESTS_TESTING_TEST_DEVICE_H_
#define FSDP_TRAIN_TESTS_TESTING_TEST_DEVICE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/test_memory.h"
#include "trainer/core/dtype.h"
#include "trainer/runtime/cost.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

class TestDevice {
 public:
  virtual ~TestDevice() = default;
  virtual DeviceType type() const = 0;
  // Numbers of CPU threads of a stream: every test runs with each.
  virtual std::vector<int> Threads() const = 0;
  virtual std::string Name(int threads) const = 0;  // "cpu2": begins the names of such tests.

  // Makes the memory for the tensors of one test; `cpu` outlives it.
  virtual std::unique_ptr<TestMemory> CreateMemory(Device& cpu) const {
    return CreatePageMemory(cpu);
  }
  // Number of orders in which the device can do an operation's work. For this dtype and place, each
  // operation of a test runs in all of them, from the same bytes, and must leave the same bits.
  virtual int Orders(DType, TensorPlace) const { return 1; }
  // The operation's kernel for this device, as work for a stream of the CPU; null where it has
  // none.
  virtual CpuKernel Kernel(const DeviceKernels& kernels, int order) const = 0;
  // The launches of the last of these kernels; null where the device cannot tell, or there are
  // none.
  virtual std::optional<Launches> Launched() const { return std::nullopt; }
};

// The device that is linked in.
const TestDevice& DeviceUnderTest();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_TEST_DEVICE_H_
