#include "trainer/ops/image_tokens.h"

#include <optional>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

constexpr double kBefore = 0.25;

struct Image {
  int64_t samples, height, width, channels, patch;

  int64_t size() const { return samples * height * width * channels; }
  int64_t rows() const { return samples * (height / patch) * (width / patch); }
  int64_t cols() const { return patch * patch * channels; }
};

// By what a patch's element is: where it lies in the image.
Values CutOracle(const Image& c, PatchOrder order, const Values& pixels) {
  Values patches(static_cast<size_t>(c.size()));
  const int64_t along = c.width / c.patch, all = c.height / c.patch * along;
  for (int64_t s = 0; s < c.samples; ++s) {
    for (int64_t y = 0; y < c.height; ++y) {
      for (int64_t x = 0; x < c.width; ++x) {
        for (int64_t channel = 0; channel < c.channels; ++channel) {
          const int64_t row = s * all + y / c.patch * along + x / c.patch;
          const int64_t down = y % c.patch, right = x % c.patch;
          const int64_t at = order == PatchOrder::kChannelFirst
                                 ? (channel * c.patch + down) * c.patch + right
                                 : (down * c.patch + right) * c.channels + channel;
          patches[row * c.cols() + at] =
              pixels[((s * c.height + y) * c.width + x) * c.channels + channel];
        }
      }
    }
  }
  return patches;
}

struct Tokens {
  int64_t samples, count, cols;  // `count`: without the first.

  int64_t x() const { return samples * count * cols; }
  int64_t y() const { return samples * (1 + count) * cols; }
};

Values JoinOracle(const Tokens& c, const Values& x, const Values& first, const Values& positions) {
  Values y;
  for (int64_t s = 0; s < c.samples; ++s) {
    for (int64_t i = 0; i <= c.count; ++i) {
      for (int64_t j = 0; j < c.cols; ++j) {
        const double token = i == 0 ? first[j] : x[(s * c.count + i - 1) * c.cols + j];
        y.push_back(token + positions[i * c.cols + j]);
      }
    }
  }
  return y;
}

class ImageTokensTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(ImageTokensTest, kF32, kBF16, kF16);

TEST_P(ImageTokensTest, PatchesAreCutInBothOrders) {
  for (const Image& c : {Image{3, 6, 4, 3, 2},
                         {1, 5, 5, 1, 5},
                         {2, 3, 9, 5, 3},
                         {2, 14, 28, 3, 14},
                         {4, 2, 2, 7, 1}}) {
    const Values values = Random(1, dtype()).Vector(c.size());
    for (const PatchOrder order : {PatchOrder::kChannelFirst, PatchOrder::kChannelLast}) {
      const View pixels = Input({c.samples, c.height, c.width, c.channels}, values, kF32);
      const View patches = Output({c.rows(), c.cols()});
      Run([&](Stream& s) { CutPatches(s, pixels, c.patch, order, patches); });
      EXPECT_EQ(Get(patches), CutOracle(c, order, values));
      EXPECT_EQ(cost().bytes_read, 4.0 * static_cast<double>(c.size()));
      Clear();
    }
  }
}

TEST_P(ImageTokensTest, PatchesAreRoundedOnce) {
  const Image c{1, 4, 4, 3, 2};
  const Values values = Random(2, kF32).Vector(c.size());
  const View pixels = Input({1, 4, 4, 3}, values, kF32), patches = Output({c.rows(), c.cols()});
  Run([&](Stream& s) { CutPatches(s, pixels, 2, PatchOrder::kChannelLast, patches); });
  EXPECT_EQ(Get(patches), RoundTo(dtype(), CutOracle(c, PatchOrder::kChannelLast, values)));
}

TEST_P(ImageTokensTest, TokensAreJoined) {
  for (const Tokens& c : {Tokens{1, 1, 1}, {3, 4, 5}, {2, 9, 67}, {5, 3, 64}, {2, 3, 1031}}) {
    for (const DType weights : WeightDTypes()) {
      Random random(3, dtype()), parameters(4, weights);
      const Values x = random.Vector(c.x()), first = parameters.Vector(c.cols);
      const Values positions = parameters.Vector((1 + c.count) * c.cols);
      const View vx = Input({c.samples * c.count, c.cols}, x);
      const View vfirst = Input({c.cols}, first, weights);
      const View vpositions = Input({1 + c.count, c.cols}, positions, weights);
      const View y = Output({c.samples * (1 + c.count), c.cols});
      Run([&](Stream& s) { JoinTokensForward(s, vx, vfirst, vpositions, c.samples, y); });
      EXPECT_TRUE(AllNear(Get(y), JoinOracle(c, x, first, positions), Epsilon(dtype())));
      EXPECT_EQ(cost().flops, c.y());
      Clear();
    }
  }
}

TEST_P(ImageTokensTest, GradientMatchesFiniteDifferences) {
  const Tokens c{4, 3, 7};
  Random random(5, dtype());
  const Values x = random.Vector(c.x()), first = random.Vector(c.cols);
  const Values positions = random.Vector((1 + c.count) * c.cols), dy = random.Vector(c.y());
  const View vdy = Input({c.samples * (1 + c.count), c.cols}, dy);
  const View dx = Output({c.samples * c.count, c.cols});
  const View dfirst = Accumulated({c.cols}, kBefore);
  const View dpositions = Accumulated({1 + c.count, c.cols}, kBefore);
  Run([&](Stream& s) { JoinTokensBackward(s, vdy, c.samples, dx, dfirst, dpositions); });
  const auto loss = [&](const Values& x, const Values& first, const Values& positions) {
    return Dot(dy, JoinOracle(c, x, first, positions));
  };
  Values want_first =
      NumericGradient([&](const Values& v) { return loss(x, v, positions); }, first);
  Values want_positions =
      NumericGradient([&](const Values& v) { return loss(x, first, v); }, positions);
  for (double& v : want_first) v += kBefore;
  for (double& v : want_positions) v += kBefore;
  const Values want_x =
      NumericGradient([&](const Values& v) { return loss(v, first, positions); }, x);
  EXPECT_TRUE(AllNear(Get(dx), want_x, Tolerance(dtype(), 1)));
  EXPECT_TRUE(AllNear(Get(dfirst), want_first, Tolerance(dtype(), c.samples)));
  EXPECT_TRUE(AllNear(Get(dpositions), want_positions, Tolerance(dtype(), c.samples)));
}

// One float32 sum an element, in the order of the samples, rounded once; whatever the dtypes.
TEST_P(ImageTokensTest, BackwardAddsInOrderOfSamples) {
  const Tokens c{33, 2, 519};
  const Values dy = Random(6, dtype()).Vector(c.y());
  std::vector<float> sums(static_cast<size_t>((1 + c.count) * c.cols), kBefore);
  for (size_t i = 0; i < dy.size(); ++i) sums[i % sums.size()] += static_cast<float>(dy[i]);
  const Values want(sums.begin(), sums.end());
  const View vdy = Input({c.samples * (1 + c.count), c.cols}, dy);
  for (const DType of_first : {kF32, kBF16, kF16}) {
    const DType of_positions = of_first == kF32 ? kBF16 : of_first == kBF16 ? kF16 : kF32;
    const View dx = Output({c.samples * c.count, c.cols});
    const View dfirst = Accumulated({c.cols}, kBefore, of_first);
    const View dpositions = Accumulated({1 + c.count, c.cols}, kBefore, of_positions);
    Run([&](Stream& s) { JoinTokensBackward(s, vdy, c.samples, dx, dfirst, dpositions); });
    EXPECT_EQ(Get(dfirst), RoundTo(of_first, Values(want.begin(), want.begin() + c.cols)));
    EXPECT_EQ(Get(dpositions), RoundTo(of_positions, want));
  }
}

TEST_P(ImageTokensTest, FrozenParametersGetNothing) {
  const View dy = Input({6, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const View dx = Output({4, 2}), first = Accumulated({2}, 0), positions = Accumulated({3, 2}, 0);
  Run([&](Stream& s) { JoinTokensBackward(s, dy, 2, dx, std::nullopt, std::nullopt); });
  EXPECT_EQ(Get(dx), (Values{3, 4, 5, 6, 9, 10, 11, 12}));
  Run([&](Stream& s) { JoinTokensBackward(s, dy, 2, dx, first, std::nullopt); });
  EXPECT_EQ(Get(first), (Values{8, 10}));
  Run([&](Stream& s) { JoinTokensBackward(s, dy, 2, dx, std::nullopt, positions); });
  EXPECT_EQ(Get(positions), (Values{8, 10, 12, 14, 16, 18}));
}

TEST_P(ImageTokensTest, FirstTokensGoThereAndBack) {
  for (const Tokens& c : {Tokens{1, 1, 1}, {3, 4, 5}, {2, 9, 67}, {5, 3, 64}, {2, 3, 1031}}) {
    Random random(7, dtype());
    const Values x = random.Vector(c.y()), dy = random.Vector(c.samples * c.cols);
    const View vx = Input({c.samples * (1 + c.count), c.cols}, x);
    const View y = Output({c.samples, c.cols}), vdy = Input({c.samples, c.cols}, dy);
    const View dx = Output({c.samples * (1 + c.count), c.cols});
    Run([&](Stream& s) {
      FirstTokensForward(s, vx, y);
      FirstTokensBackward(s, vdy, dx);
    });
    Values first, spread(static_cast<size_t>(c.y()), 0.0);
    for (int64_t s = 0; s < c.samples; ++s) {
      const int64_t at = s * (1 + c.count) * c.cols;
      first.insert(first.end(), x.begin() + at, x.begin() + at + c.cols);
      for (int64_t j = 0; j < c.cols; ++j) spread[at + j] = dy[s * c.cols + j];
    }
    EXPECT_EQ(Get(y), first);
    EXPECT_EQ(Get(dx), spread);
    Clear();
  }
}

TEST_P(ImageTokensTest, RefusesWrongArguments) {
  const View pixels = Output({2, 4, 6, 3}, kF32);
  const auto cut = [&](const View& from, int64_t patch, const View& to, const char* message) {
    ExpectRefused([=](Stream& s) { CutPatches(s, from, patch, PatchOrder::kChannelLast, to); },
                  message);
  };
  cut(pixels, 4, Output({2, 48}), "[cut_patches] pixels are [2, 4, 6, 3], whose sides 4 does not");
  cut(pixels, 0, Output({2, 48}), "whose sides 0 does not divide");
  cut(pixels, 2, Output({11, 12}), "patches is $T [11, 12], want $T [12, 12]");
  cut(Output({2, 4, 18}, kF32), 2, Output({12, 12}), "[cut_patches] pixels is fp32 [2, 4, 18]");
  const View x = Output({4, 3}), first = Output({3}), positions = Output({3, 3});
  const View y = Output({6, 3});
  const auto join = [&](const View& first, const View& positions, int64_t samples, const View& y,
                        const std::string& message) {
    ExpectRefused([=](Stream& s) { JoinTokensForward(s, x, first, positions, samples, y); },
                  "[join_tokens_forward] " + message);
  };
  join(first, positions, 3, y, "x has 4 rows, for 3 samples");
  join(first, positions, 0, y, "x has 4 rows, for 0 samples");
  join(first, Output({2, 3}), 2, y, "positions is $T [2, 3], want $T [3, 3]");
  join(Output({2}), positions, 2, y, "first is $T [2], want $T [3]");
  join(first, positions, 2, Output({5, 3}), "y is $T [5, 3], want $T [6, 3]");
  join(Output({3}, OtherHalf()), positions, 2, y, "first is " + std::string(Name(OtherHalf())));
  join(first, y.Slice(0, 9).Reshape({3, 3}), 2, y, "y and positions overlap");
  ExpectRefused(
      [&](Stream& s) { JoinTokensBackward(s, y, 2, x, positions.Slice(0, 3), positions); },
      "[join_tokens_backward] dfirst and dpositions overlap");
  ExpectRefused([&](Stream& s) { JoinTokensBackward(s, y, 4, x, first, positions); },
                "[join_tokens_backward] dy has 6 rows, for 4 samples");
  ExpectRefused([&](Stream& s) { FirstTokensForward(s, y, x); },
                "[first_tokens_forward] x has 6 rows, for 4 samples");
  ExpectRefused(
      [&](Stream& s) {
        FirstTokensBackward(s, y.Slice(0, 6).Reshape({2, 3}), y);
      },
      "[first_tokens_backward] dx and dy overlap");
  ExpectDTypesRefused("cut_patches", [&](Stream& s) {
    CutPatches(s, Output({2, 4, 6, 3}, kF32), 2, PatchOrder::kChannelLast, Output({12, 12}));
  });
  ExpectDTypesRefused("join_tokens_forward", [&](Stream& s) {
    JoinTokensForward(s, Output({4, 3}), Output({3}), Output({3, 3}), 2, Output({6, 3}));
  });
  ExpectDTypesRefused("join_tokens_backward", [&](Stream& s) {
    JoinTokensBackward(s, Output({6, 3}), 2, Output({4, 3}), Output({3}), Output({3, 3}));
  });
  ExpectDTypesRefused("first_tokens_forward", [&](Stream& s) {
    FirstTokensForward(s, Output({6, 3}), Output({2, 3}));
  });
  ExpectDTypesRefused("first_tokens_backward", [&](Stream& s) {
    FirstTokensBackward(s, Output({2, 3}), Output({6, 3}));
  });
}

}  // namespace
}  // namespace fsdp
