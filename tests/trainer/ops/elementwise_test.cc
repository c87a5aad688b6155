#include "trainer/ops/elementwise.h"

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

constexpr int64_t kSizes[] = {0, 1, 7, 1024, 5001};

class ElementwiseTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(ElementwiseTest, kF32, kBF16, kF16);

TEST_P(ElementwiseTest, AddAndAccumulateRoundOnce) {
  for (const int64_t n : kSizes) {
    Random random(n, dtype());
    const auto av = random.Vector(n), bv = random.Vector(n);
    std::vector<double> want;
    for (int64_t i = 0; i < n; ++i) want.push_back(RoundTo(dtype(), RoundTo(kF32, av[i] + bv[i])));
    const View a = Input({n}, av), b = Input({n}, bv), y = Output({n});
    Run([&](Stream& stream) { Add(stream, a, b, y); });
    EXPECT_EQ(Get(y), want);
    Set(y, av);
    Run([&](Stream& stream) { Add(stream, y, b, y); });
    EXPECT_EQ(Get(y), want) << "y is a";
    Set(y, bv);
    Run([&](Stream& stream) { Add(stream, a, y, y); });
    EXPECT_EQ(Get(y), want) << "y is b";
    Run([&](Stream& stream) { Accumulate(stream, a, b); });
    EXPECT_EQ(Get(b), want);
    Run([&](Stream& stream) { Accumulate(stream, a, a); });
    for (double& v : want) v = 2 * av[&v - want.data()];
    EXPECT_EQ(Get(a), want) << "y is x";
    Clear();
  }
}

TEST_P(ElementwiseTest, ScaleRoundsOnce) {
  for (const int64_t n : kSizes) {
    const auto values = Random(n, dtype()).Vector(n);
    std::vector<double> want;
    for (const double v : values) want.push_back(RoundTo(dtype(), RoundTo(kF32, 3 * v)));
    const View y = Input({n}, values);
    Run([&](Stream& stream) { Scale(stream, 3, y); });
    EXPECT_EQ(Get(y), want);
    Clear();
  }
}

TEST_P(ElementwiseTest, TensorsBeginAnywhere) {
  constexpr int64_t kSize = 64, kPart = 21;
  Random random(7, dtype());
  const auto av = random.Vector(kSize), bv = random.Vector(kSize);
  const View a = Input({kSize}, av), b = Input({kSize}, bv), sum = Accumulated({kSize});
  const View filled = Accumulated({kSize});
  for (const int64_t from : {0, 1, 8}) {
    for (const int64_t to : {0, 2, 16}) {
      Set(sum, std::vector<double>(kSize, 7));
      Set(filled, std::vector<double>(kSize, 7));
      Run([&](Stream& stream) {
        Add(stream, a.Slice(from, kPart), b.Slice(to, kPart), sum.Slice(to, kPart));
        Fill(stream, 2, filled.Slice(from, kPart));
        Scale(stream, 3, filled.Slice(from, kPart));
      });
      std::vector<double> want(kSize, 7), want_filled(kSize, 7);
      for (int64_t i = 0; i < kPart; ++i) {
        want[to + i] = RoundTo(dtype(), RoundTo(kF32, av[from + i] + bv[to + i]));
        want_filled[from + i] = 6;
      }
      EXPECT_EQ(Get(sum), want);
      EXPECT_EQ(Get(filled), want_filled);
    }
  }
}

TEST_P(ElementwiseTest, FillRoundsToTheDType) {
  for (const int64_t n : kSizes) {
    const View y = Output({n}), ints = Output({n}, DType::kInt32);
    Run([&](Stream& stream) {
      Fill(stream, 0.1f, y);
      Fill(stream, -100, ints);
    });
    EXPECT_EQ(Get(y), std::vector<double>(n, RoundTo(dtype(), 0.1)));
    EXPECT_EQ(Get(ints), std::vector<double>(n, -100));
    Clear();
  }
}

TEST_P(ElementwiseTest, CopyKeepsBits) {
  for (const int64_t n : kSizes) {
    for (const DType any : {dtype(), DType::kInt64, DType::kUInt8}) {
      const auto values = Random(n, any).Integers(n, 200);
      const View x = Input({n}, values, any), y = Output({n}, any);
      Run([&](Stream& stream) { Copy(stream, x, y); });
      EXPECT_EQ(Get(y), values) << Name(any);
      Run([&](Stream& stream) { Copy(stream, x, x); });
      EXPECT_EQ(Get(x), values) << "onto itself";
    }
    Clear();
  }
}

TEST_P(ElementwiseTest, RefusesWrongArguments) {
  const View a = Output({6}), b = Output({6}), five = Output({5});
  ExpectRefused([&](Stream& s) { Add(s, a, five, b); }, "[add] b is $T [5], want $T with 6");
  ExpectRefused([&](Stream& s) { Add(s, a.Slice(0, 5), five, a.Slice(1, 5)); }, "overlap");
  ExpectRefused([&](Stream& s) { Accumulate(s, five, a); }, "[accumulate] x is $T [5]");
  ExpectRefused([&](Stream& s) { Accumulate(s, a.Slice(0, 5), a.Slice(1, 5)); }, "overlap");
  ExpectRefused([&](Stream& s) { Fill(s, 0, Output({2}, DType::kInt64)); },
                "[fill] y is int64, want fp32, bf16, fp16 or int32");
  ExpectRefused([&](Stream& s) { Fill(s, 0.5f, Output({2}, DType::kInt32)); }, "int32");
  ExpectRefused([&](Stream& s) { Fill(s, 3e9f, Output({2}, DType::kInt32)); }, "int32");
  ExpectRefused([&](Stream& s) { Copy(s, a, five); }, "[copy] x is $T [6]");
  ExpectRefused([&](Stream& s) { Copy(s, a, Output({6}, DType::kInt32)); }, "want int32");
  ExpectRefused([&](Stream& s) { Copy(s, a.Slice(0, 5), a.Slice(1, 5)); }, "overlap");
  ExpectDTypesRefused("add", [&](Stream& s) { Add(s, Output({6}), Output({6}), Output({6})); });
  ExpectDTypesRefused("scale", [&](Stream& s) { Scale(s, 3, Output({6})); });
  ExpectDTypesRefused("accumulate", [&](Stream& s) { Accumulate(s, Output({6}), Output({6})); });
}

}  // namespace
}  // namespace fsdp
