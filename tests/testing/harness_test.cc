// The harness itself: that what it promises to catch is caught.
#include "tests/testing/harness.h"

#include <gtest/gtest-spi.h>
#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <stdexcept>

#include "tests/testing/numeric.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr Cost kCost = {.flops = 1, .bytes_read = 4, .bytes_written = 4};

class HarnessTest : public OpTest {
 protected:
  // y = x + 1, with what is declared left to the test.
  static void AddOne(Stream& stream, ConstView x, View y, Operation operation, int64_t beyond = 0) {
    const auto add = [beyond](ThreadPool&, const ConstView& from, const View& to) {
      for (int64_t i = 0; i < to.NumElements() + beyond; ++i) {
        to.As<float>()[i] = from.As<float>()[i % from.NumElements()] + 1;
      }
    };
    operation.kernels.cpu = OnCpu(add, x, y);
    stream.Enqueue(std::move(operation));
  }
};
using HarnessDeathTest = HarnessTest;

// By SIGSEGV, or by a sanitizer that met it first: not by abort(), the way of our own checks.
bool Crashed(int status) {
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0;
}

TEST_P(HarnessTest, RunsAnHonestOp) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  for (const double v : Get(y)) EXPECT_TRUE(std::isnan(v));
  Run([=](Stream& stream) { AddOne(stream, x, y, {"add_one", {x}, {y}, {kCost}}); });
  EXPECT_EQ(Get(y), (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(cost().flops, 1);
}

TEST_P(HarnessTest, RethrowsAndIsUsableAfterwards) {
  const View x = Input({1}, {1});
  const auto fail = [=](Stream& stream) {
    stream.Enqueue({"fail", {x}, {}, {kCost}, {[](ThreadPool&) { throw DataError("bad"); }}});
  };
  EXPECT_THROW(Run(fail), DataError);
  EXPECT_EQ(Get(x), std::vector<double>{1});
}

TEST_P(HarnessTest, KeepsEveryDType) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32,
                            DType::kInt64, DType::kUInt8}) {
    EXPECT_EQ(Get(Input({3}, {1, 2, 96}, dtype)), (std::vector<double>{1, 2, 96})) << Name(dtype);
  }
}

TEST_P(HarnessDeathTest, UndeclaredRead) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EXIT(Run([=](Stream& s) { AddOne(s, x, y, {"add_one", {}, {y}, {kCost}}); }), Crashed, "");
}

TEST_P(HarnessDeathTest, WriteDeclaredAsRead) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EXIT(Run([=](Stream& s) {
                AddOne(s, x, y, {"add_one", {x, y}, {}, {kCost}});
              }),
              Crashed, "");
}

TEST_P(HarnessDeathTest, OneElementTooFar) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EXIT(Run([=](Stream& s) {
                AddOne(s, x, y, {"add_one", {x}, {y}, {kCost}}, 1);
              }),
              Crashed, "");
}

TEST_P(HarnessDeathTest, HostReadsATensor) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EXIT(Run([=](Stream& s) {
                if (x.As<float>()[0] > 0) AddOne(s, x, y, {"add_one", {x}, {y}, {kCost}});
              }),
              Crashed, "");
}

class HarnessBeginTest : public HarnessTest {};
using HarnessBeginDeathTest = HarnessBeginTest;

TEST_P(HarnessBeginTest, TensorsAreAlignedAndWorkspacesLarge) {
  for (int i = 1; i < 9; ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(Output({i}).data) % 4096, 0) << i;
  }
  for (const DType dtype : {kF32, kBF16, kF16}) {
    const double filled = Get(View(Workspace(4).data, dtype, {1}))[0];
    EXPECT_GT(filled, 5e4) << Name(dtype);
    EXPECT_LE(filled, Largest(dtype)) << Name(dtype);
  }
}

TEST_P(HarnessBeginDeathTest, OneElementBefore) {
  const View x = Input({3}, {1, 2, 3}), y = Output({3});
  EXPECT_EXIT(Run([=](Stream& s) {
                AddOne(s, x, View(y.data - 4, kF32, {3}), {"add_one", {x}, {y}, {kCost}});
              }),
              Crashed, "");
}

FSDP_INSTANTIATE_OP_TEST(HarnessTest, kF32);
INSTANTIATE_TEST_SUITE_P(OneDevice, HarnessDeathTest, ::testing::Values(OpTestCase{}));
const OpTestCase kAtTheBegin{.place = TensorPlace::kBegin};
INSTANTIATE_TEST_SUITE_P(OneDevice, HarnessBeginTest, ::testing::Values(kAtTheBegin));
INSTANTIATE_TEST_SUITE_P(OneDevice, HarnessBeginDeathTest, ::testing::Values(kAtTheBegin));

// Failures that the harness reports in `test`.
int Failures(const std::function<void()>& test) {
  using Reporter = ::testing::ScopedFakeTestPartResultReporter;
  ::testing::TestPartResultArray failures;
  {
    const Reporter reporter(Reporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    test();
  }
  return failures.size();
}

class DTypesTest : public OpTest {
 protected:
  // fp32 and bf16, with fp32 statistics; `lax` does not look at the latter's dtype.
  static void Norm(Stream& stream, const View& x, const View& mean, bool lax = false) {
    const std::string op = "[norm] ";
    const auto refuse = [&](const char* name, const View& view, const char* want) {
      throw std::invalid_argument(op + name + " is " + std::string(Name(view.dtype)) + ", want " +
                                  want);
    };
    const bool good = x.dtype == kF32 || x.dtype == DType::kBFloat16;
    if (!good) refuse("x", x, "fp32 or bf16");
    if (mean.dtype != kF32 && !lax) refuse("mean", mean, "fp32");
    stream.Enqueue({"norm", {x}, {mean}, {kCost}, {[](ThreadPool&) {}}});
  }
};
FSDP_INSTANTIATE_OP_TEST(DTypesTest, kF32, DType::kBFloat16);

TEST_P(DTypesTest, OperandsAreOfTheDTypeUnderTest) {
  EXPECT_EQ(Input({1}, {1}).dtype, dtype());
  EXPECT_EQ(Output({1}).dtype, dtype());
  EXPECT_EQ(Accumulated({1}).dtype, dtype());
  EXPECT_EQ(Output({1}, DType::kInt32).dtype, DType::kInt32);
  const View x = Input({1}, {1 + 0x1p-10});
  EXPECT_EQ(Get(x)[0], RoundTo(dtype(), 1 + 0x1p-10));
  ExpectRefused([&](Stream& s) { Norm(s, Output({2}, DType::kInt64), x); },
                dtype() == kF32 ? "[norm] x is int64" : "x is int64, want fp32 or $T");
}

TEST_P(DTypesTest, EveryOperandIsOfferedInEveryOtherDType) {
  const auto norm = [&](bool lax) {
    return [this, lax](Stream& s) { Norm(s, Output({2}), Output({1}, kF32), lax); };
  };
  ExpectDTypesRefused("norm", norm(false));
  EXPECT_GE(Failures([&] { ExpectDTypesRefused("norm", norm(true)); }), 5);
}

TEST_P(HarnessTest, OtherBitsAreSeen) {
  const View y = Output({1});
  int calls = 0;
  const auto count = [&](Stream& stream) {
    const auto set = [&calls](ThreadPool&, const View& to) {
      to.As<float>()[0] = static_cast<float>(++calls);
    };
    stream.Enqueue({"count", {}, {y}, {kCost}, {OnCpu(set, y)}});
  };
  EXPECT_EQ(Failures([&] { ExpectSameBits(count, {y}); }), 3);
}

TEST(Tolerance, PaysForRoundings) {
  EXPECT_EQ(Tolerance(DType::kFloat32, 3), 12 * 0x1p-23);
  EXPECT_EQ(Tolerance(DType::kBFloat16, 0), 0x1p-7 + 8 * 0x1p-23);
  EXPECT_EQ(Tolerance(DType::kBFloat16, 0, 3), 0x1p-7 + 24 * 0x1p-23);
}

TEST(AllNear, RefusesNanSizesAndErrors) {
  EXPECT_TRUE(AllNear({1, 200}, {1.01, 201}, 0.011));
  EXPECT_FALSE(AllNear({1, 200}, {1.02, 201}, 0.011));
  EXPECT_FALSE(AllNear({NAN}, {1}, 1e9));
  EXPECT_FALSE(AllNear({1, 2}, {NAN, 2}, 1e9));
  EXPECT_FALSE(AllNear({1}, {1, 2}, 1e9));
}

TEST(NumericGradient, OfACube) {
  const auto cubes = [](const std::vector<double>& x) {
    return x[0] * x[0] * x[0] + 2 * x[1] * x[1] * x[1];
  };
  const std::vector<double> got = NumericGradient(cubes, {0.5, -1});
  EXPECT_NEAR(got[0], 0.75, 1e-9);
  EXPECT_NEAR(got[1], 6, 1e-9);
}

TEST(Random, IsReproducibleAndRounded) {
  EXPECT_EQ(Random(1, kF32).Vector(8), Random(1, kF32).Vector(8));
  EXPECT_NE(Random(1, kF32).Vector(8), Random(2, kF32).Vector(8));
  for (const double v : Random(1, DType::kBFloat16).Vector(100)) {
    EXPECT_EQ(v, RoundTo(DType::kBFloat16, v));
    EXPECT_LE(std::abs(v), 1);
  }
}

}  // namespace
}  // namespace fsdp
