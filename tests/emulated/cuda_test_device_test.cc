// The op tests' harness for a GPU, over the emulated runtime. It must catch the mistakes that it
// promises to catch.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/emulated/cudart.h"
#include "tests/testing/harness.h"
#include "trainer/core/errors.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr Cost kCost = {.flops = 1, .bytes_read = 4, .bytes_written = 4};

__global__ void CopyKernel(const float* x, int from, int to, float* y) {
  const int i = from + static_cast<int>(threadIdx.x);
  if (i < to) y[i] = x[i];
}
__global__ void IncrementKernel(float* x) { *x += 1; }

class CudaTestDeviceTest : public OpTest {
 protected:
  // y[from, to) = x[from, to); the test declares the ranges.
  static void Copy(Stream& stream, ConstView x, View y, Operation operation, int from, int to) {
    const auto copy = [](CudaStreamHandle s, const ConstView& a, const View& b, int i, int n) {
      Launch<CopyKernel>(s, 1, 64, 0, a.As<float>(), i, n, b.As<float>());
    };
    operation.kernels.cuda = OnCuda(+copy, x, y, from, to);
    stream.Enqueue(std::move(operation));
  }

  // The failures that a test is told about, for [from, to) of 3 elements.
  std::vector<std::string> Failures(ConstView x, View y, const std::vector<Range>& reads,
                                    const std::vector<Range>& writes, int from = 0, int to = 3) {
    return Failures([&] {
      Run([&](Stream& s) { Copy(s, x, y, {"copy", reads, writes, {kCost}}, from, to); });
    });
  }
  static std::vector<std::string> Failures(const std::function<void()>& test) {
    using Reporter = ::testing::ScopedFakeTestPartResultReporter;
    ::testing::TestPartResultArray failures;
    {
      const Reporter reporter(Reporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      test();
    }
    std::vector<std::string> messages;
    for (int i = 0; i < failures.size(); ++i) {
      messages.emplace_back(failures.GetTestPartResult(i).message());
    }
    return messages;
  }
};
using CudaTestDeviceDeathTest = CudaTestDeviceTest;
FSDP_INSTANTIATE_OP_TEST(CudaTestDeviceTest, kF32);
FSDP_INSTANTIATE_OP_TEST(CudaTestDeviceDeathTest, kF32);

// Each mistake is noticed in both runs of the operation.
std::vector<std::string> Twice(const std::string& message) { return {message, message}; }

TEST_P(CudaTestDeviceTest, RunsAnHonestOp) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  for (const double v : Get(y)) EXPECT_TRUE(std::isnan(v));
  EXPECT_EQ(Failures(x, y, {x}, {y}), std::vector<std::string>());
  EXPECT_EQ(Get(y), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(Get(x), (std::vector<double>{1, 2, 3}));
}

TEST_P(CudaTestDeviceTest, EveryDTypeAndNoElementAtAll) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32,
                            DType::kInt64, DType::kUInt8}) {
    EXPECT_EQ(Get(Input({3}, {1, 2, 96}, dtype)), (std::vector<double>{1, 2, 96})) << Name(dtype);
    EXPECT_EQ(Get(Input({0}, {}, dtype)), std::vector<double>()) << Name(dtype);
  }
}

TEST_P(CudaTestDeviceTest, OneElementTooFar) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EQ(
      Failures(x, y, {x}, {y}, 0, 4),
      Twice("Failed\ncopy writes byte 12 of tensor 1, which has 12, and does not declare it"));
  EXPECT_EQ(
      Failures(x, y, {x}, {y}, -1, 3),
      Twice("Failed\ncopy writes byte -4 of tensor 1, which has 12, and does not declare it"));
}

TEST_P(CudaTestDeviceTest, AnInputIsChanged) {
  const View x = Input({3}, {1, 2, 3}), y = Input({3}, {1, 5, 3});
  EXPECT_EQ(Failures(x, y, {x, y}, {}),
            Twice("Failed\ncopy writes byte 6 of tensor 1, which has 12, and does not declare it"));
  EXPECT_EQ(Get(y), (std::vector<double>{1, 5, 3}));
}

TEST_P(CudaTestDeviceTest, ATensorThatIsNotDeclaredIsWritten) {
  const View x = Input({3}, {1, 2, 3}), y = Input({3}, {4, 5, 6});
  EXPECT_EQ(Failures(x, y, {x}, {}).size(), 2);
  EXPECT_EQ(Get(y), (std::vector<double>{4, 5, 6}));
}

TEST_P(CudaTestDeviceTest, MoreOfATensorThanIsDeclaredIsWritten) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EQ(
      Failures(x, y, {x}, {Range(y.data, 8)}),
      Twice("Failed\ncopy writes byte 10 of tensor 1, which has 12, and does not declare it"));
}

TEST_P(CudaTestDeviceTest, ATensorThatIsNotDeclaredIsRead) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EQ(Failures(x, y, {}, {y}).size(), 1) << "other bits in each run";
  for (const double v : Get(y)) EXPECT_TRUE(std::isnan(v));
  EXPECT_EQ(Get(x), (std::vector<double>{1, 2, 3}));
}

TEST_P(CudaTestDeviceTest, MoreThanATensorHasIsRead) {
  const View x = Input({2}, {1, 2}), y = Output({3});
  EXPECT_EQ(Failures(x, y, {x}, {y}).size(), 1);
  EXPECT_TRUE(std::isnan(Get(y)[2]));
}

TEST_P(CudaTestDeviceTest, OtherBitsInASecondRunAreSeen) {
  const View y = Output({1});
  int calls = 0;
  const auto count = [&](Stream& stream) {
    stream.Enqueue({"count", {}, {y}, {kCost}, {.cuda = [&](CudaStreamHandle s) {
                      auto* const at = HostAddress(y.data);
                      CheckCuda(cudaMemsetAsync(at, ++calls, 4, s), "cudaMemsetAsync");
                    }}});
  };
  EXPECT_EQ(Failures([&] { Run(count); }).size(), 1);
}

TEST_P(CudaTestDeviceTest, EachRunBeginsWithTheSameBytes) {
  const View x = Input({1}, {1});
  Run([=](Stream& stream) {
    const auto increment = [](CudaStreamHandle s, const View& at) {
      Launch<IncrementKernel>(s, 1, 1, 0, at.As<float>());
    };
    stream.Enqueue({"increment", {}, {x}, {kCost}, {.cuda = OnCuda(+increment, x)}});
  });
  EXPECT_EQ(Get(x), std::vector<double>{2});
}

TEST_P(CudaTestDeviceTest, WorkOfTheHostIsRefused) {
  const View y = Output({1});
  const auto host = [=](Stream& stream) {
    stream.Enqueue({"host", {}, {y}, {kCost}, {.host = [](ThreadPool&) {}}});
  };
  EXPECT_EQ(Failures([&] { Run(host); }).size(), 1);
}

TEST_P(CudaTestDeviceTest, WhatCudaSaysIsAnError) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  FailEmulatedCall("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
  EXPECT_THROW(Failures(x, y, {x}, {y}), DeviceError);
  FailEmulatedCall("cudaMalloc", 1, cudaErrorMemoryAllocation);
  EXPECT_THROW(Output({1}), DeviceError);
  ResetEmulatedGpus();
}

TEST_P(CudaTestDeviceDeathTest, HostReadsATensor) {
  GTEST_FLAG_SET(death_test_style,
                 "threadsafe");  // The emulated GPU has threads: fork() alone may hang.
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  const auto crashed = [](int status) {  // By SIGSEGV, or by a sanitizer that met it first.
    return WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0;
  };
  EXPECT_EXIT(Run([=](Stream& s) {
                if (x.As<float>()[0] > 0) Copy(s, x, y, {"copy", {x}, {y}, {kCost}}, 0, 3);
              }),
              crashed, "");
}

}  // namespace
}  // namespace fsdp
