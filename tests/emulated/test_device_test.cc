// The op tests' harness on the emulator. It must catch the mistakes that it promises to catch.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tests/testing/harness.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr Cost kCost = {.flops = 1, .bytes_read = 4, .bytes_written = 4};

__global__ void AddOneKernel(const float* x, int n, float* y) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i < n) y[i] = x[i] + 1;
}
__global__ void HalfKernel(const float* x, float* y) { y[0] = x[0] / 2; }
// Rows of 5 elements, as a pack and one more where the first row is aligned.
__global__ void CopyRowsKernel(const float* x, int rows, bool packs, float* y) {
  for (int i = 0; i < 5 * rows; i += 5) {
    if (packs) {
      *reinterpret_cast<Pack<float>*>(y + i) = *reinterpret_cast<const Pack<float>*>(x + i);
    } else {
      for (int j = i; j < i + 4; ++j) y[j] = x[j];
    }
    y[i + 4] = x[i + 4];
  }
}
// Bits that depend on the order: the last thread wins.
__global__ void LastKernel(float* y) { y[0] = static_cast<float>(threadIdx.x); }

class EmulatedTest : public OpTest {
 protected:
  static void AddOne(Stream& stream, ConstView x, View y, Operation operation, int beyond = 0) {
    const auto add = [](CudaStreamHandle s, const ConstView& from, const View& to, int n) {
      Launch<AddOneKernel>(s, 1, 64, 0, from.As<float>(), n, to.As<float>());
    };
    const auto n = static_cast<int>(y.NumElements()) + beyond;
    operation.kernels.cuda = OnCuda(+add, x, y, n);
    stream.Enqueue(std::move(operation));
  }
};
using EmulatedDeathTest = EmulatedTest;
class EmulatedRowsDeathTest : public EmulatedTest {
 protected:
  void CopyRows(int rows) {
    const View x = Input({rows, 5}, std::vector<double>(5 * rows, 2)), y = Output({rows, 5});
    Run([=](Stream& stream) {
      const auto copy = [](CudaStreamHandle s, const ConstView& from, const View& to, int n) {
        const bool packs = IsAligned(from.data) && IsAligned(to.data);
        Launch<CopyRowsKernel>(s, 1, 1, 0, from.As<float>(), n, packs, to.As<float>());
      };
      stream.Enqueue({"copy_rows", {x}, {y}, {kCost}, {.cuda = OnCuda(+copy, x, y, rows)}});
    });
    EXPECT_EQ(Get(y), Get(x));
  }
};

OpTestCase CaseAt(TensorPlace place) { return {.device = DeviceType::kCuda, .place = place}; }
INSTANTIATE_TEST_SUITE_P(AtTheEnd, EmulatedTest, ::testing::Values(CaseAt(TensorPlace::kEnd)));
INSTANTIATE_TEST_SUITE_P(AtTheEnd, EmulatedDeathTest, ::testing::Values(CaseAt(TensorPlace::kEnd)));
INSTANTIATE_TEST_SUITE_P(EachPlace, EmulatedRowsDeathTest,
                         ::testing::Values(CaseAt(TensorPlace::kEnd), CaseAt(TensorPlace::kBegin)));

int Failures(const std::function<void()>& test) {
  using Reporter = ::testing::ScopedFakeTestPartResultReporter;
  ::testing::TestPartResultArray failures;
  {
    const Reporter reporter(Reporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    test();
  }
  return failures.size();
}

TEST_P(EmulatedTest, RunsTheCudaKernel) {
  EXPECT_EQ(kernel_type(), DeviceType::kCuda);
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  Run([=](Stream& s) { AddOne(s, x, y, {"add_one", {x}, {y}, {kCost}}); });
  EXPECT_EQ(Get(y), (std::vector<double>{2, 3, 4}));
  Run([=](Stream& s) { AddOne(s, y, y, {"add_one", {}, {y}, {kCost}}); });
  EXPECT_EQ(Get(y), (std::vector<double>{3, 4, 5})) << "once, whatever the number of orders";
}

TEST_P(EmulatedTest, BitsOfBothOrdersAreCompared) {
  const View y = Output({1});
  const auto last = [=](Stream& stream) {
    const auto run = [](CudaStreamHandle s, const View& to) {
      Launch<LastKernel>(s, 1, 64, 0, to.As<float>());
    };
    stream.Enqueue({"last", {}, {y}, {kCost}, {.cuda = OnCuda(+run, y)}});
  };
  EXPECT_EQ(Failures([&] { Run(last); }), 1);
}

TEST_P(EmulatedTest, AnOpWithoutCudaKernelIsRefused) {
  const View y = Output({1});
  const auto cpu_only = [=](Stream& stream) {
    stream.Enqueue({"cpu_only", {}, {y}, {kCost}, {.cpu = [](ThreadPool&) {}}});
  };
  EXPECT_THROW(Run(cpu_only), std::invalid_argument);
}

TEST_P(EmulatedTest, WorkOfTheHostRuns) {
  const View y = Output({1});
  const auto host = [=](Stream& stream) {
    const auto set = [](ThreadPool&, const View& to) { to.As<float>()[0] = 5; };
    stream.Enqueue({"host", {}, {y}, {kCost}, {.host = OnCpu(set, y)}});
  };
  Run(host);
  EXPECT_EQ(Get(y), std::vector<double>{5});
}

TEST_P(EmulatedTest, SubnormalNumbersAreZero) {
  const View x = Input({1}, {std::numeric_limits<float>::min()}), y = Output({1});
  Run([=](Stream& stream) {
    const auto run = [](CudaStreamHandle s, const ConstView& from, const View& to) {
      Launch<HalfKernel>(s, 1, 1, 0, from.As<float>(), to.As<float>());
    };
    stream.Enqueue({"half", {x}, {y}, {kCost}, {.cuda = OnCuda(+run, x, y)}});
  });
  EXPECT_EQ(Get(y), std::vector<double>{0});
}

// By SIGSEGV, or by a sanitizer that met it first.
bool Crashed(int status) {
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0;
}

TEST_P(EmulatedDeathTest, UndeclaredRead) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EXIT(Run([=](Stream& s) { AddOne(s, x, y, {"add_one", {}, {y}, {kCost}}); }), Crashed, "");
}

TEST_P(EmulatedDeathTest, WriteDeclaredAsRead) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EXIT(Run([=](Stream& s) {
                AddOne(s, x, y, {"add_one", {x, y}, {}, {kCost}});
              }),
              Crashed, "");
}

TEST_P(EmulatedDeathTest, OneElementTooFar) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EXIT(Run([=](Stream& s) {
                AddOne(s, x, y, {"add_one", {x}, {y}, {kCost}}, 1);
              }),
              Crashed, "");
}

// On a GPU it is a fault.
TEST_P(EmulatedRowsDeathTest, APackThatIsNotAligned) {
  CopyRows(1);
  if (GetParam().place == TensorPlace::kEnd) {
    CopyRows(2);
  } else {
    EXPECT_EXIT(CopyRows(2), Crashed, "");
  }
}

}  // namespace
}  // namespace fsdp
