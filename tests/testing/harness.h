// The fixture of every op's test. It holds an op to its contract while the test looks at the
// numbers:
//   - Calling the op touches no tensor, on the device under test (where the host runs ahead) and on
//     sim (where there is no data): all of them are inaccessible until the kernel runs.
//   - The kernel reads and writes only what the Operation declares: a tensor that is not in
//     `reads` or `writes` is inaccessible while it runs, one in `reads` alone is read-only. Every
//     tensor ends at an inaccessible page, so one element too far is caught as well.
//   - In one more case of each test ("_begin"), of the suite's last dtype, every tensor begins at a
//     page instead: there a kernel that looks at the first row alone takes the others for aligned.
//     Workspaces then hold large numbers, elsewhere NaN.
//   - The device under test and sim get the same operations, with a name and a cost.
// The device is the one that the program is linked with (test_device.h): the CPU; the emulator of
// GPUs, where every kernel runs in both orders and must leave the same bits; or a GPU, where it
// runs twice. A violation is a crash by SIGSEGV inside the op; harness_test shows each of them. A
// GPU has no such pages: a write outside of the declared tensors fails the test when the kernel has
// ended, and undeclared tensors hold NaN (guarded_memory.h).
#ifndef FSDP_TRAIN_TESTS_TESTING_HARNESS_H_
#define FSDP_TRAIN_TESTS_TESTING_HARNESS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/testing/test_memory.h"
#include "trainer/core/view.h"
#include "trainer/runtime/cost.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/device.h"

namespace fsdp {

inline constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16, kF16 = DType::kFloat16;

// The device that a test runs on, and the dtype of activations and weights.
struct OpTestCase {
  DeviceType device = DeviceType::kCpu;
  int threads = 1;
  DType dtype = kF32;
  std::vector<DType> supported = {dtype};  // All of the suite's.
  TensorPlace place = TensorPlace::kEnd;
};
void PrintTo(const OpTestCase& c, std::ostream* out);  // "cpu2_fp32", "cpu3_fp32_begin".
// The cases of the device under test: each dtype, and the last one once more with tensors at the
// begin of pages; on the CPU with 1, 2 and 3 threads.
std::vector<OpTestCase> OpTestCases(const std::vector<DType>& supported);

class OpTest : public ::testing::TestWithParam<OpTestCase> {
 protected:
  using Call = std::function<void(Stream&)>;

  OpTest();
  ~OpTest() override;

  DType dtype() const { return GetParam().dtype; }
  // The device whose kernels run, and so whose workspaces they need.
  DeviceType kernel_type() const { return GetParam().device; }
  // The dtypes that a parameter may have beside activations of the dtype under test: that one, and
  // fp32.
  std::vector<DType> WeightDTypes() const;
  // bf16, or fp16 where bf16 is under test: with the dtype under test, only gradients of parameters
  // may have it.
  DType OtherHalf() const { return dtype() == kBF16 ? kF16 : kBF16; }

  // Tensors live on the device under test until the end of the test or Clear(). Their dtype is the
  // one under test unless `dtype` names another.
  View Input(const Shape& shape, const std::vector<double>& values,
             std::optional<DType> dtype = std::nullopt);
  // A tensor to be overwritten: NaN everywhere first (integers: the largest).
  View Output(const Shape& shape, std::optional<DType> dtype = std::nullopt);
  // A tensor to be added to: `before` everywhere first.
  View Accumulated(const Shape& shape, double before = 1,
                   std::optional<DType> dtype = std::nullopt);
  // A uint8 tensor of NaN's bits; in the case "_begin" of a large number's.
  View Workspace(int64_t bytes);

  // The tensor's values now. `view` may be a part of a tensor.
  std::vector<double> Get(const View& view) const;
  void Set(const View& view, const std::vector<double>& values);

  // Makes the call on sim, then on the device under test, waits for it, and rethrows what the
  // kernel threw. The call may enqueue several operations.
  void Run(const Call& call) { Run(call, GetParam().threads); }
  // The cost of the last Run(): all of it, and kernel by kernel.
  Cost cost() const { return Sum(costs_); }
  const std::vector<KernelCost>& costs() const { return costs_; }

  // The call throws std::invalid_argument that contains `message`, where $T stands for the dtype
  // under test, and enqueues nothing.
  void ExpectRefused(const Call& call, const std::string& message);
  // Expects that `call`, which makes its operands itself, is accepted. It is refused with any
  // operand in a dtype that the suite does not list (or in another one than the operand names), by
  // a message with op, operand and both dtypes.
  void ExpectDTypesRefused(const std::string& op, const Call& call);

  // Expects that the call, from the tensors' values now, leaves the same bits in `results` in every
  // run and for any number of threads: for ops that promise it. On the emulator every Run() checks
  // it.
  void ExpectSameBits(const Call& call, const std::vector<View>& results);

  void Clear() { memory_->Clear(); }

 private:
  class Recorder;
  class NoDevice;
  // During ExpectDTypesRefused(): the dtypes that the operands made so far name, and the operand
  // that gets another.
  struct Substitution {
    int operand;
    DType dtype;
    std::vector<std::optional<DType>> said = {};
  };

  DType Choose(std::optional<DType> said);
  void Run(const Call& call, int threads);
  // The message with which the call is refused; a failure where it is not, or has enqueued
  // something.
  std::string Refusal(const Call& call);
  View Allocate(const Shape& shape, DType dtype);
  void SetBytes(const View& view, uint8_t byte);
  TestMemory::Bytes ReadBytes(const View& view) const;
  // Runs it on a stream of the CPU, in every order of the device under test.
  void RunOperation(Stream& stream, const Operation& operation);

  CpuDevice device_;
  std::unique_ptr<TestMemory> memory_;
  std::vector<KernelCost> costs_;
  std::optional<Substitution> substitution_;
};

// The .cu files, without their endings, all kernels of which a source's tests launch on a GPU or
// its emulator:
//   const LaunchedKernels launched(__FILE__, {"attention_cuda", "attention_backward_cuda"});
// x_test.cc launches those of x_cuda.cu without saying so.
struct LaunchedKernels {
  LaunchedKernels(const char* source, const std::vector<std::string>& kernels);
  // By source, as "attention_test".
  static std::map<std::string, std::vector<std::string>>& Said();
};

}  // namespace fsdp

// Runs the suite, a class derived from OpTest, on every test device with each of the dtypes. They
// are all that the op supports, and the only list of them in the test.
#define FSDP_INSTANTIATE_OP_TEST(suite, ...)                                        \
  INSTANTIATE_TEST_SUITE_P(EveryDevice, suite,                                      \
                           ::testing::ValuesIn(::fsdp::OpTestCases({__VA_ARGS__})), \
                           [](const auto& info) { return ::testing::PrintToString(info.param); })

#endif  // FSDP_TRAIN_TESTS_TESTING_HARNESS_H_
