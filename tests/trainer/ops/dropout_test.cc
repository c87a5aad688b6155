#include "trainer/ops/dropout.h"

#include <cmath>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

// The formula of the header, element by element.
Values Oracle(const Values& x, int64_t batch, const Values& keys, uint32_t site, double rate) {
  const int64_t size = static_cast<int64_t>(x.size()) / batch;
  Values y;
  for (int64_t b = 0; b < batch; ++b) {
    const PhiloxKey key{static_cast<uint32_t>(static_cast<int64_t>(keys[2 * b])),
                        static_cast<uint32_t>(static_cast<int64_t>(keys[2 * b + 1]))};
    for (int64_t e = 0; e < size; ++e) {
      const auto block = static_cast<uint64_t>(e / 4);
      const PhiloxCounter words =
          Philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), site, 0}, key);
      const bool kept = words[e % 4] >= rate * 0x1p32;
      y.push_back(kept ? x[b * size + e] / (1 - rate) : 0);
    }
  }
  return y;
}

class DropoutTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(DropoutTest, kF32, kBF16, kF16);

TEST_P(DropoutTest, MatchesOracle) {
  Random random(1, dtype());
  const Values keys = {1, -2, 2000000000, 3, -2000000000, 0};
  for (const int64_t size : {1, 4, 127, 128, 1025}) {
    for (const double rate : {0.0, 0.1, 0.5, 0.9}) {
      const Values x = random.Vector(3 * size);
      const View vx = Input({3, size}, x), vkeys = Input({3, 2}, keys, DType::kInt32);
      const View y = Output({3, size});
      Run([&](Stream& s) { Dropout(s, vx, vkeys, 5, rate, y); });
      EXPECT_TRUE(AllNear(Get(y), Oracle(x, 3, keys, 5, rate), Tolerance(dtype(), 1)));
      Run([&](Stream& s) { Dropout(s, vx, vkeys, 5, rate, vx); });
      EXPECT_EQ(Get(vx), Get(y)) << "in place";
      Clear();
    }
  }
}

// Far from its share is 6 standard deviations; places and samples are unrelated.
TEST_P(DropoutTest, DropsItsShareAndOthersElsewhere) {
  const int64_t n = 20000;
  const View x = Input({2, n}, Values(2 * n, 1)), y = Output({2, n});
  const View keys = Input({2, 2}, {7, 8, 8, 7}, DType::kInt32);
  const auto dropped = [&](uint32_t site) {
    Run([&](Stream& s) { Dropout(s, x, keys, site, 0.25, y); });
    Values zero;
    for (const double v : Get(y)) zero.push_back(v == 0 ? 1 : 0);
    return zero;
  };
  const Values a = dropped(0), b = dropped(1);
  const auto share = [&](const auto& at) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += at(i);
    return sum / n;
  };
  const auto deviation = [&](double p) { return 6 * std::sqrt(p * (1 - p) / n); };
  EXPECT_NEAR(share([&](int64_t i) { return a[i]; }), 0.25, deviation(0.25));
  EXPECT_NEAR(share([&](int64_t i) { return a[n + i]; }), 0.25, deviation(0.25));
  EXPECT_NEAR(share([&](int64_t i) { return a[i] * a[n + i]; }), 0.0625, deviation(0.0625));
  EXPECT_NEAR(share([&](int64_t i) { return a[i] * b[i]; }), 0.0625, deviation(0.0625));
}

TEST_P(DropoutTest, RefusesWrongArguments) {
  const View x = Output({2, 6}), y = Output({2, 6}), keys = Output({2, 2}, DType::kInt32);
  const auto drop = [&](const View& x, const View& keys, double rate, const View& y) {
    return [=](Stream& s) { Dropout(s, x, keys, 0, rate, y); };
  };
  ExpectRefused(drop(x, keys, 1, y), "[dropout] rate");
  ExpectRefused(drop(x, keys, -0.1, y), "[dropout] rate");
  ExpectRefused(drop(x, keys, std::nan(""), y), "[dropout] rate");
  ExpectRefused(drop(x, Output({2}, DType::kInt32), 0.5, y), "keys is int32 [2]");
  ExpectRefused(drop(x, keys, 0.5, Output({2, 5})), "y is $T [2, 5]");
  ExpectRefused(drop(x.Reshape({12}), keys, 0.5, y), "x is $T [12]");
  ExpectRefused(drop(x, keys, 0.5, Output({2, 6}, OtherHalf())),
                "y is " + std::string(Name(OtherHalf())) + " [2, 6], want $T");
  ExpectDTypesRefused("dropout", [&](Stream& s) {
    Dropout(s, Output({2, 6}), Output({2, 2}, DType::kInt32), 0, 0.5, Output({2, 6}));
  });
}

TEST_P(DropoutTest, BitsDoNotDependOnThreads) {
  const View x = Input({3, 777}, Random(3, dtype()).Vector(3 * 777)), y = Output(x.shape);
  const View keys = Input({3, 2}, {7, 8, 9, -10, 11, 12}, DType::kInt32);
  ExpectSameBits([&](Stream& stream) { Dropout(stream, x, keys, 1, 0.3, y); }, {y});
}

}  // namespace
}  // namespace fsdp
