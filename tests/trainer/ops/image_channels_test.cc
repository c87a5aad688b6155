#include "trainer/ops/image_channels.h"

#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

struct Images {
  int64_t samples, height, width, channels;

  Shape shape() const { return {samples, height, width, channels}; }
  Shape of_channels() const { return {samples, channels}; }
  int64_t pixels() const { return height * width; }
  int64_t size() const { return samples * pixels() * channels; }
  // The channel of a sample that an element is of.
  int64_t Channel(int64_t at) const { return at / channels / pixels() * channels + at % channels; }
};

const Images kImages[] = {{3, 2, 3, 5}, {1, 1, 1, 1}, {2, 9, 15, 3}, {2, 3, 3, 131}};

class ImageChannelsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(ImageChannelsTest, kF32, kBF16, kF16);

TEST_P(ImageChannelsTest, PixelsAreAveragedAndSpread) {
  for (const Images& c : kImages) {
    Random random(1, dtype());
    const Values x = random.Vector(c.size()), dy = random.Vector(c.samples * c.channels);
    const View vx = Input(c.shape(), x), y = Output(c.of_channels());
    const View vdy = Input(c.of_channels(), dy), dx = Output(c.shape());
    Run([&](Stream& s) {
      MeanPixelsForward(s, vx, y);
      MeanPixelsBackward(s, vdy, dx, /*adds=*/false);
    });
    const double pixels = static_cast<double>(c.pixels());
    Values want(dy.size(), 0.0), want_dx;
    for (int64_t i = 0; i < c.size(); ++i) {
      want[c.Channel(i)] += x[i] / pixels;
      want_dx.push_back(dy[c.Channel(i)] / pixels);
    }
    EXPECT_TRUE(AllNear(Get(y), want, Tolerance(dtype(), c.pixels())));
    EXPECT_TRUE(AllNear(Get(dx), want_dx, Tolerance(dtype(), 1)));
    if (kernel_type() == DeviceType::kCpu) {  // Elsewhere a second run would add once more.
      const View sums = Input(c.shape(), x);
      Run([&](Stream& s) { MeanPixelsBackward(s, vdy, sums, /*adds=*/true); });
      for (int64_t i = 0; i < c.size(); ++i) want_dx[i] += x[i];
      EXPECT_TRUE(AllNear(Get(sums), want_dx, Tolerance(dtype(), 1)));
    }
    Clear();
  }
}

TEST_P(ImageChannelsTest, ChannelsAreScaled) {
  for (const Images& c : kImages) {
    Random random(2, dtype());
    const Values x = random.Vector(c.size()), f = random.Vector(c.samples * c.channels);
    const Values dy = random.Vector(c.size());
    const View vx = Input(c.shape(), x), vf = Input(c.of_channels(), f);
    const View vdy = Input(c.shape(), dy), y = Output(c.shape()), dx = Output(c.shape());
    const View df = Output(c.of_channels());
    Run([&](Stream& s) {
      ScaleChannelsForward(s, vx, vf, y);
      ScaleChannelsBackward(s, vx, vf, vdy, dx, df);
    });
    Values want, want_dx, want_df(f.size(), 0.0);
    for (int64_t i = 0; i < c.size(); ++i) {
      want.push_back(x[i] * f[c.Channel(i)]);
      want_dx.push_back(dy[i] * f[c.Channel(i)]);
      want_df[c.Channel(i)] += dy[i] * x[i];
    }
    EXPECT_TRUE(AllNear(Get(y), want, Tolerance(dtype(), 1)));
    EXPECT_TRUE(AllNear(Get(dx), want_dx, Tolerance(dtype(), 1)));
    EXPECT_TRUE(AllNear(Get(df), want_df, Tolerance(dtype(), c.pixels())));
    Clear();
  }
}

TEST_P(ImageChannelsTest, RefusesWrongArguments) {
  const View x = Output({2, 3, 3, 4}), f = Output({2, 4}), y = Output({2, 3, 3, 4});
  ExpectRefused(
      [&](Stream& s) {
        MeanPixelsForward(s, x, Output({2, 3}));
      },
      "[mean_pixels_forward] y is $T [2, 3], want $T [2, 4]");
  ExpectRefused([&](Stream& s) { MeanPixelsForward(s, Output({2}), f); },
                "[mean_pixels_forward] x is [2], want [samples, ..., channels]");
  ExpectRefused(
      [&](Stream& s) {
        MeanPixelsBackward(s, x.Slice(0, 8).Reshape({2, 4}), x, true);
      },
      "[mean_pixels_backward] dx and dy overlap");
  ExpectRefused(
      [&](Stream& s) {
        ScaleChannelsForward(s, x, Output({3, 4}), y);
      },
      "[scale_channels_forward] f is $T [3, 4], want $T [2, 4]");
  ExpectRefused([&](Stream& s) { ScaleChannelsForward(s, x, f, x); }, "y and x overlap");
  ExpectRefused(
      [&](Stream& s) {
        ScaleChannelsBackward(s, x, f, y, x, Output({2, 4}));
      },
      "[scale_channels_backward] dx and x overlap");
  ExpectDTypesRefused("mean_pixels_forward", [&](Stream& s) {
    MeanPixelsForward(s, Output({2, 3, 3, 4}), Output({2, 4}));
  });
  ExpectDTypesRefused("mean_pixels_backward", [&](Stream& s) {
    MeanPixelsBackward(s, Output({2, 4}), Output({2, 3, 3, 4}), false);
  });
  ExpectDTypesRefused("scale_channels_forward", [&](Stream& s) {
    ScaleChannelsForward(s, Output({2, 3, 3, 4}), Output({2, 4}), Output({2, 3, 3, 4}));
  });
  ExpectDTypesRefused("scale_channels_backward", [&](Stream& s) {
    ScaleChannelsBackward(s, Output({2, 3, 3, 4}), Output({2, 4}), Output({2, 3, 3, 4}),
                          Output({2, 3, 3, 4}), Output({2, 4}));
  });
}

}  // namespace
}  // namespace fsdp
