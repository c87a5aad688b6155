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

namespace fsdp {

class TestDevice {
 public:
  virtual ~TestDevice() = default;
  virtual DeviceType type() const = 0;
  // Every test runs with each of them: CPU threads of a stream.
  virtual std::vector<int> Threads() const = 0;
  virtual std::string Name(int threads) const = 0;  // "cpu2": begins the names of such tests.

  // For the tensors of one test; `cpu` outlives it.
  virtual std::unique_ptr<TestMemory> CreateMemory(Device& cpu) const {
    return CreatePageMemory(cpu);
  }
  // The orders in which it can do an operation's work, [0, n): each operation of a test of this
  // dtype, whose tensors lie there, is done in all of them, from the same bytes, and leaves the
  // same bits.
  virtual int Orders(DType, TensorPlace) const { return 1; }
  // The operation's kernel for this device, as work for a stream of the CPU; null where it has
  // none.
  virtual CpuKernel Kernel(const DeviceKernels& kernels, int order) const = 0;
  // The launches of the last of these kernels; null where the device cannot tell, or there are
  // none.
  virtual std::optional<Launches> Launched() const { return std::nullopt; }
};

// The one that is linked in.
const TestDevice& DeviceUnderTest();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_TEST_DEVICE_H_
