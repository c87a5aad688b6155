// The fixture that every op's test stands on. It holds an op to its contract while the test looks
// at the numbers:
//   - Calling the op touches no tensor, on the cpu device (where the host runs ahead) and on sim
//     (where there is no data): all of them are inaccessible until the kernel runs.
//   - The kernel reads and writes only what the Operation declares: a tensor that is not in
//     `reads` or `writes` is inaccessible while it runs, one in `reads` alone is read-only. Every
//     tensor ends at an inaccessible page, so one element too far is caught as well.
//   - cpu and sim get the same operations, with a name and a cost.
// A violation is a crash by SIGSEGV inside the op; harness_test shows each of them.
#ifndef FSDP_TRAIN_TESTS_TESTING_HARNESS_H_
#define FSDP_TRAIN_TESTS_TESTING_HARNESS_H_

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/testing/numeric.h"
#include "trainer/core/view.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// What a test runs on.
struct TestDevice {
  DeviceType type = DeviceType::kCpu;
  int threads = 1;
};
void PrintTo(const TestDevice& device, std::ostream* out);  // "cpu2".
std::vector<TestDevice> TestDevices();                      // cpu with 1, 2 and 3 threads.

class OpTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  using Call = std::function<void(Stream&)>;

  OpTest();
  ~OpTest() override;

  // Tensors live until the end of the test or Clear(), on the device under test.
  View Input(const Shape& shape, const std::vector<double>& values, DType dtype = DType::kFloat32);
  // To be overwritten: NaN everywhere first (integers: the largest).
  View Output(const Shape& shape, DType dtype = DType::kFloat32);
  // To be added to: `before` everywhere first.
  View Accumulated(const Shape& shape, double before = 1, DType dtype = DType::kFloat32);
  View Workspace(int64_t bytes);  // uint8, filled with the bits of NaN.

  // What the tensor holds now. `view` may be a part of a tensor.
  std::vector<double> Get(const View& view) const;
  void Set(const View& view, const std::vector<double>& values);

  // Makes the call on sim, then on the device under test, waits for it, and rethrows what the
  // kernel threw. The call may enqueue several operations.
  void Run(const Call& call);
  // What the last Run() cost: all of it, and kernel by kernel.
  Cost cost() const { return Sum(costs_); }
  const std::vector<KernelCost>& costs() const { return costs_; }

  // The call throws std::invalid_argument that contains `message` and enqueues nothing.
  void ExpectRefused(const Call& call, const std::string& message);

  void Clear() { tensors_.clear(); }

 private:
  struct TestTensor {
    Buffer buffer;   // Ends with the inaccessible page.
    int64_t usable;  // Bytes before that page.
  };
  class Recorder;

  View Allocate(const Shape& shape, DType dtype);
  void ProtectAll(int protection) const;
  void ProtectFor(const Operation& operation) const;

  CpuDevice device_;
  std::deque<TestTensor> tensors_;
  std::vector<KernelCost> costs_;
};

}  // namespace fsdp

// Runs the suite, a class derived from OpTest, on every test device.
#define FSDP_INSTANTIATE_OP_TEST(suite)                                                    \
  INSTANTIATE_TEST_SUITE_P(EveryDevice, suite, ::testing::ValuesIn(::fsdp::TestDevices()), \
                           [](const auto& info) { return ::testing::PrintToString(info.param); })

#endif  // FSDP_TRAIN_TESTS_TESTING_HARNESS_H_
