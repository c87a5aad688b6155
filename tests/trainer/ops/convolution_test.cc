#include "trainer/ops/convolution.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

const LaunchedKernels launched_kernels(__FILE__, {"convolution_weights_cuda"});

using Values = std::vector<double>;

constexpr double kBefore = 0.25;

ConvolutionShape Of(int64_t samples, int64_t height, int64_t width, int64_t in, int64_t out,
                    int64_t kernel, int64_t stride, int64_t padding, int64_t groups) {
  return {samples, height, width, in, out, kernel, kernel, {stride, padding, padding, groups}};
}

std::vector<ConvolutionShape> Shapes() {
  return {
      Of(2, 5, 7, 6, 4, 3, 1, 1, 2),        // As in a block.
      Of(3, 6, 5, 4, 6, 3, 2, 1, 2),        // With a stride, both parities of a side.
      Of(2, 7, 6, 3, 5, 3, 2, 1, 1),        // As at the network's begin.
      Of(2, 3, 5, 7, 9, 1, 1, 0, 1),        // A product.
      Of(2, 5, 4, 7, 9, 1, 2, 0, 1),        // As beside a block with a stride.
      Of(1, 6, 6, 4, 4, 1, 2, 0, 2),        // Groups of one pixel.
      Of(1, 5, 5, 2, 3, 2, 3, 0, 1),        // Pixels that no tap sees.
      Of(2, 1, 1, 5, 3, 3, 1, 1, 1),        // All taps but one see zeros.
      Of(1, 4, 4, 3, 3, 5, 1, 3, 3),        // Padding that taps lie in alone.
      Of(2, 9, 11, 38, 34, 3, 1, 1, 2),     // Tails of packs and of tiles.
      {2, 6, 1, 5, 4, 3, 1, {1, 1, 0, 1}},  // One dimension.
  };
}

Shape XOf(const ConvolutionShape& s) { return {s.samples, s.height, s.width, s.in}; }
Shape WOf(const ConvolutionShape& s) {
  return {s.out, s.group_in(), s.kernel_height, s.kernel_width};
}
Shape YOf(const ConvolutionShape& s) { return {s.samples, s.out_height(), s.out_width(), s.out}; }

// Calls f(element of x, of w, of y) for all products.
template <typename Function>
void ForEachTerm(const ConvolutionShape& s, const Function& f) {
  const ConvolutionWindow& window = s.window;
  for (int64_t sample = 0; sample < s.samples; ++sample) {
    for (int64_t i = 0; i < s.out_height(); ++i) {
      for (int64_t j = 0; j < s.out_width(); ++j) {
        for (int64_t o = 0; o < s.out; ++o) {
          for (int64_t c = 0; c < s.group_in(); ++c) {
            for (int64_t a = 0; a < s.kernel_height; ++a) {
              for (int64_t b = 0; b < s.kernel_width; ++b) {
                const int64_t row = i * window.stride + a - window.padding_height;
                const int64_t col = j * window.stride + b - window.padding_width;
                if (row < 0 || row >= s.height || col < 0 || col >= s.width) continue;
                const int64_t channel = o / s.group_out() * s.group_in() + c;
                f(((sample * s.height + row) * s.width + col) * s.in + channel,
                  ((o * s.group_in() + c) * s.kernel_height + a) * s.kernel_width + b,
                  ((sample * s.out_height() + i) * s.out_width() + j) * s.out + o);
              }
            }
          }
        }
      }
    }
  }
}

struct Operands {
  Values x, w, dy;
};
Operands Draw(const ConvolutionShape& s, DType dtype, DType weights) {
  Random random(1, dtype), of_weights(2, weights);
  return {random.Vector(XOf(s).NumElements()), of_weights.Vector(s.weights()),
          random.Vector(YOf(s).NumElements())};
}

struct Wanted {
  Values y, dx, dw;
};
Wanted Oracle(const ConvolutionShape& s, const Operands& given) {
  Wanted want{Values(given.dy.size(), 0.0), Values(given.x.size(), 0.0),
              Values(given.w.size(), kBefore)};
  ForEachTerm(s, [&](int64_t x, int64_t w, int64_t y) {
    want.y[y] += given.x[x] * given.w[w];
    want.dx[x] += given.dy[y] * given.w[w];
    want.dw[w] += given.dy[y] * given.x[x];
  });
  return want;
}

class ConvolutionTest : public OpTest {
 protected:
  View ForwardWorkspace(const ConvolutionShape& s, DType w,
                        const ConvolutionBackend& backend = {}) {
    return Workspace(ConvolutionForwardWorkspaceBytes(s, dtype(), w, kernel_type(), backend));
  }
  View BackwardWorkspace(const ConvolutionShape& s, DType w, bool dx, bool dw,
                         const ConvolutionBackend& backend = {}) {
    return Workspace(
        ConvolutionBackwardWorkspaceBytes(s, dtype(), w, dx, dw, kernel_type(), backend));
  }
};
FSDP_INSTANTIATE_OP_TEST(ConvolutionTest, kF32, kBF16, kF16);

TEST_P(ConvolutionTest, MatchesSums) {
  for (const ConvolutionShape& s : Shapes()) {
    for (const DType weights : WeightDTypes()) {
      const Operands given = Draw(s, dtype(), weights);
      const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w, weights);
      const View y = Output(YOf(s)), workspace = ForwardWorkspace(s, weights);
      Run([&](Stream& stream) { ConvolutionForward(stream, x, w, s.window, y, workspace); });
      EXPECT_TRUE(AllNear(Get(y), Oracle(s, given).y, Tolerance(dtype(), s.terms())));
      EXPECT_EQ(cost().flops, 2.0 * static_cast<double>(s.out_pixels() * s.out * s.terms()));
      Clear();
    }
  }
}

TEST_P(ConvolutionTest, GradientsMatchSums) {
  for (const ConvolutionShape& s : Shapes()) {
    for (const DType weights : WeightDTypes()) {
      const Operands given = Draw(s, dtype(), weights);
      const Wanted want = Oracle(s, given);
      const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w, weights);
      const View dy = Input(YOf(s), given.dy);
      for (const DType sums : {kF32, OtherHalf()}) {
        const View dx = Output(XOf(s)), dw = Accumulated(WOf(s), kBefore, sums);
        const View workspace = BackwardWorkspace(s, weights, true, true);
        Run([&](Stream& stream) {
          ConvolutionBackward(stream, x, w, s.window, dy, dx, dw, workspace);
        });
        EXPECT_TRUE(AllNear(Get(dx), want.dx, Tolerance(dtype(), s.taps() * s.group_out())));
        EXPECT_TRUE(AllNear(Get(dw), want.dw, Tolerance(sums, s.out_pixels())));
      }
      Clear();
    }
  }
}

// The oracle's own gradients are those of its sums.
TEST_P(ConvolutionTest, GradientsMatchFiniteDifferences) {
  const ConvolutionShape s = Of(2, 4, 5, 4, 6, 3, 2, 1, 2);
  const Operands given = Draw(s, dtype(), dtype());
  const auto loss = [&](const Values& x, const Values& w) {
    return Dot(given.dy, Oracle(s, {x, w, given.dy}).y);
  };
  const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w), dy = Input(YOf(s), given.dy);
  const View dx = Output(XOf(s)), dw = Accumulated(WOf(s), 0, kF32);
  const View workspace = BackwardWorkspace(s, dtype(), true, true);
  Run([&](Stream& t) { ConvolutionBackward(t, x, w, s.window, dy, dx, dw, workspace); });
  const Values want_dx =
      NumericGradient([&](const Values& v) { return loss(v, given.w); }, given.x);
  const Values want_dw =
      NumericGradient([&](const Values& v) { return loss(given.x, v); }, given.w);
  EXPECT_TRUE(AllNear(Get(dx), want_dx, Tolerance(dtype(), s.taps() * s.group_out())));
  EXPECT_TRUE(AllNear(Get(dw), want_dw, Tolerance(kF32, s.out_pixels())));
}

// Several tiles of pixels, and several parts of dw that are added up.
TEST_P(ConvolutionTest, ManyPixelsAreSummedInParts) {
  const ConvolutionShape s = Of(3, 19, 21, 5, 7, 3, 1, 1, 1);
  ASSERT_GT(s.WeightSlicesOnCpu(), 1);
  ASSERT_GT(s.WeightSlicesOnCuda(), 1);
  const Operands given = Draw(s, dtype(), dtype());
  const Wanted want = Oracle(s, given);
  const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w), dy = Input(YOf(s), given.dy);
  const View y = Output(YOf(s)), dx = Output(XOf(s)), dw = Accumulated(WOf(s), kBefore);
  const View forward = ForwardWorkspace(s, dtype());
  const View backward = BackwardWorkspace(s, dtype(), true, true);
  Run([&](Stream& stream) {
    ConvolutionForward(stream, x, w, s.window, y, forward);
    ConvolutionBackward(stream, x, w, s.window, dy, dx, dw, backward);
  });
  EXPECT_TRUE(AllNear(Get(y), want.y, Tolerance(dtype(), s.terms())));
  EXPECT_TRUE(AllNear(Get(dx), want.dx, Tolerance(dtype(), s.taps() * s.group_out())));
  EXPECT_TRUE(AllNear(Get(dw), want.dw, Tolerance(dtype(), s.out_pixels())));
}

TEST_P(ConvolutionTest, BitsDoNotDependOnThreads) {
  for (const ConvolutionShape& s :
       {Of(3, 17, 19, 6, 10, 3, 2, 1, 2), Of(2, 17, 19, 6, 9, 1, 2, 0, 1)}) {
    const Operands given = Draw(s, dtype(), dtype());
    const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w);
    const View dy = Input(YOf(s), given.dy), y = Output(YOf(s)), dx = Output(XOf(s));
    const View dw = Accumulated(WOf(s), kBefore), forward = ForwardWorkspace(s, dtype());
    const View backward = BackwardWorkspace(s, dtype(), true, true);
    ExpectSameBits(
        [&](Stream& stream) {
          ConvolutionForward(stream, x, w, s.window, y, forward);
          ConvolutionBackward(stream, x, w, s.window, dy, dx, dw, backward);
        },
        {y, dx, dw});
    Clear();
  }
}

TEST_P(ConvolutionTest, EitherGradientMayBeLeftOut) {
  for (const ConvolutionShape& s : {Of(2, 5, 7, 6, 4, 3, 1, 1, 2), Of(2, 5, 4, 7, 9, 1, 2, 0, 1),
                                    Of(2, 3, 5, 7, 9, 1, 1, 0, 1)}) {
    const Operands given = Draw(s, dtype(), dtype());
    const Wanted want = Oracle(s, given);
    const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w);
    const View dy = Input(YOf(s), given.dy);
    const View dx = Output(XOf(s)), dw = Accumulated(WOf(s), kBefore);
    const View for_dx = BackwardWorkspace(s, dtype(), true, false);
    const View for_dw = BackwardWorkspace(s, dtype(), false, true);
    Run([&](Stream& t) { ConvolutionBackward(t, x, w, s.window, dy, dx, std::nullopt, for_dx); });
    EXPECT_TRUE(AllNear(Get(dx), want.dx, Tolerance(dtype(), s.taps() * s.group_out())));
    Run([&](Stream& t) { ConvolutionBackward(t, x, w, s.window, dy, std::nullopt, dw, for_dw); });
    EXPECT_TRUE(AllNear(Get(dw), want.dw, Tolerance(dtype(), s.out_pixels())));
    Clear();
  }
}

// Images of these shapes begin at multiples of 16 bytes in every dtype.
std::vector<ConvolutionShape> ShapesOfCudnn() {
  return {
      Of(2, 5, 7, 16, 8, 3, 1, 1, 2),       // As in a block.
      Of(1, 9, 7, 8, 16, 3, 2, 1, 1),       // One image, with a stride and odd sides.
      Of(1, 7, 5, 24, 8, 3, 1, 0, 1),       // Without padding.
      Of(2, 6, 5, 16, 32, 3, 2, 0, 2),      // A stride that leaves pixels out.
      Of(8, 5, 7, 3, 5, 3, 1, 1, 1),        // Odd channels, as at the network's begin.
      Of(2, 6, 6, 16, 16, 1, 2, 0, 2),      // Groups of one pixel.
      Of(1, 9, 9, 8, 8, 3, 1, 1, 8),        // A group for each channel.
      {2, 6, 1, 8, 8, 3, 1, {1, 1, 0, 1}},  // One dimension.
  };
}

// cuDNN's sums for dw are rounded to the images' dtype, and then added to what is there.
double ToleranceOfDw(const ConvolutionShape& s, DType images, DType dw) {
  return Tolerance(dw, s.out_pixels()) + (images == kF32 ? 0 : Tolerance(images, 0));
}

TEST_P(ConvolutionTest, CudnnMatchesSums) {
  const ConvolutionBackend cudnn{.cudnn = true};
  for (const ConvolutionShape& s : ShapesOfCudnn()) {
    const Operands given = Draw(s, dtype(), dtype());
    const Wanted want = Oracle(s, given);
    const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w), dy = Input(YOf(s), given.dy);
    const View y = Output(YOf(s)), forward = ForwardWorkspace(s, dtype(), cudnn);
    Run([&](Stream& t) { ConvolutionForward(t, x, w, s.window, y, forward, cudnn); });
    EXPECT_EQ(costs()[0].gpu.launches, 2);  // One of ours, one of cuDNN's.
    EXPECT_TRUE(AllNear(Get(y), want.y, Tolerance(dtype(), s.terms())));
    for (const DType sums : {kF32, kBF16, kF16}) {
      const View dx = Output(XOf(s)), dw = Accumulated(WOf(s), kBefore, sums);
      const View backward = BackwardWorkspace(s, dtype(), true, true, cudnn);
      Run([&](Stream& t) { ConvolutionBackward(t, x, w, s.window, dy, dx, dw, backward, cudnn); });
      EXPECT_EQ(costs()[0].gpu.launches, 2);
      EXPECT_EQ(costs()[1].gpu.launches, 2);
      EXPECT_TRUE(AllNear(Get(dx), want.dx, Tolerance(dtype(), s.taps() * s.group_out())));
      EXPECT_TRUE(AllNear(Get(dw), want.dw, ToleranceOfDw(s, dtype(), sums)));
    }
    Clear();
  }
}

// Either gradient may be cuDNN's and the other our own, and either may be left out.
TEST_P(ConvolutionTest, CudnnComputesPartOfTheGradients) {
  using Pass = ConvolutionCall::Pass;
  const ConvolutionShape s = Of(2, 5, 7, 16, 8, 3, 1, 1, 2);
  const Operands given = Draw(s, dtype(), dtype());
  const Wanted want = Oracle(s, given);
  const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w), dy = Input(YOf(s), given.dy);
  for (const std::optional<Pass> refused :
       {std::optional<Pass>(), std::optional(Pass::kDx), std::optional(Pass::kDw)}) {
    ConvolutionBackend backend{.cudnn = true};
    if (refused) backend.refused.push_back({*refused, s, dtype(), dtype()});
    for (const auto& [with_dx, with_dw] : {std::pair{true, true}, {true, false}, {false, true}}) {
      const View dx = Output(XOf(s)), dw = Accumulated(WOf(s), kBefore);
      const View workspace = BackwardWorkspace(s, dtype(), with_dx, with_dw, backend);
      const auto if_wanted = [](bool wanted, const View& view) {
        return wanted ? std::optional(view) : std::nullopt;
      };
      Run([&](Stream& t) {
        ConvolutionBackward(t, x, w, s.window, dy, if_wanted(with_dx, dx), if_wanted(with_dw, dw),
                            workspace, backend);
      });
      if (with_dx) {
        EXPECT_EQ(costs()[0].gpu.launches, refused == Pass::kDx ? 1 : 2);
        EXPECT_TRUE(AllNear(Get(dx), want.dx, Tolerance(dtype(), s.taps() * s.group_out())));
      }
      if (with_dw) {
        EXPECT_TRUE(AllNear(Get(dw), want.dw, ToleranceOfDw(s, dtype(), dtype())));
      }
    }
  }
}

// Our own kernels take the calls that are not for cuDNN: products, factors of two dtypes, images
// that begin elsewhere than at multiples of 16 bytes.
TEST_P(ConvolutionTest, CudnnIsNotGivenAllCalls) {
  std::set<ConvolutionCall> asked;
  const ConvolutionBackend cudnn{.cudnn = true, .asked = &asked};
  struct Case {
    ConvolutionShape shape;
    DType weights;
    bool shifted;
  };
  const ConvolutionShape block = Of(2, 5, 7, 16, 8, 3, 1, 1, 2);
  for (const Case& c : {Case{Of(2, 3, 5, 8, 16, 1, 1, 0, 1), dtype(), false},
                        Case{Of(2, 5, 4, 8, 16, 1, 2, 0, 1), dtype(), false},
                        Case{block, kF32, false}, Case{block, dtype(), true}}) {
    asked.clear();
    const ConvolutionShape& s = c.shape;
    const Operands given = Draw(s, dtype(), c.weights);
    const Wanted want = Oracle(s, given);
    Values with_ends = given.x;
    with_ends.insert(with_ends.begin(), 0.0);
    with_ends.push_back(0.0);
    const View all = Input({XOf(s).NumElements() + 2}, with_ends);
    const View images = Input(XOf(s), given.x), w = Input(WOf(s), given.w, c.weights);
    const View x = c.shifted ? all.Slice(1, XOf(s).NumElements()).Reshape(XOf(s)) : images;
    const View y = Output(YOf(s)), forward = ForwardWorkspace(s, c.weights, cudnn);
    Run([&](Stream& t) { ConvolutionForward(t, x, w, s.window, y, forward, cudnn); });
    EXPECT_TRUE(AllNear(Get(y), want.y, Tolerance(dtype(), s.terms())));
    const bool may = c.weights == dtype() && !s.is_pointwise();
    EXPECT_EQ(asked.size(), may ? 1u : 0u);
    if (c.shifted) {
      EXPECT_EQ(costs()[0].gpu.launches, 1);
    }
    Clear();
  }
}

// The order of sums is the same in each run, which the harness compares, and in others.
TEST_P(ConvolutionTest, CudnnLeavesTheSameBits) {
  const ConvolutionBackend cudnn{.cudnn = true};
  const ConvolutionShape s = Of(2, 9, 7, 16, 8, 3, 2, 1, 2);
  const Operands given = Draw(s, dtype(), dtype());
  const View x = Input(XOf(s), given.x), w = Input(WOf(s), given.w), dy = Input(YOf(s), given.dy);
  const View y = Output(YOf(s)), dx = Output(XOf(s)), dw = Accumulated(WOf(s), kBefore);
  const View forward = ForwardWorkspace(s, dtype(), cudnn);
  const View backward = BackwardWorkspace(s, dtype(), true, true, cudnn);
  ExpectSameBits(
      [&](Stream& t) {
        ConvolutionForward(t, x, w, s.window, y, forward, cudnn);
        ConvolutionBackward(t, x, w, s.window, dy, dx, dw, backward, cudnn);
      },
      {y, dx, dw});
}

TEST_P(ConvolutionTest, RefusesWrongArguments) {
  const ConvolutionShape s = Of(2, 5, 7, 6, 4, 3, 1, 1, 2);
  const View x = Output(XOf(s)), w = Output(WOf(s)), y = Output(YOf(s));
  const View workspace = ForwardWorkspace(s, dtype());
  const auto refused = [&](const View& x, const View& w, ConvolutionWindow window, const View& y,
                           const std::string& message) {
    ExpectRefused([=](Stream& t) { ConvolutionForward(t, x, w, window, y, workspace); },
                  "[convolution_forward] " + message);
  };
  ConvolutionWindow window = s.window;
  window.stride = 0;
  refused(x, w, window, y, "the stride is not positive");
  window = s.window;
  window.padding_width = -1;
  refused(x, w, window, y, "padding is negative");
  window = s.window;
  window.groups = 3;
  refused(x, w, window, y, "w is [4, 3, 3, 3], for 6 channels in 3 groups");
  window.groups = 0;
  refused(x, w, window, y, "there are no groups");
  refused(x, Output({4, 3, 8, 3}), s.window, y, "a kernel of 8 x 3 does not fit into x, which is");
  refused(x, Output({4, 27}), s.window, y, "w is $T [4, 27]");
  refused(Output({2, 35, 6}), w, s.window, y, "x is $T [2, 35, 6]");
  refused(x, w, s.window, Output({2, 5, 7, 6}), "y is $T [2, 5, 7, 6], want $T [2, 5, 7, 4]");
  refused(x, w, s.window, x.Slice(0, 280).Reshape(YOf(s)), "y and x overlap");
  const View dx = Output(XOf(s)), dw = Accumulated(WOf(s));
  const View backward = BackwardWorkspace(s, dtype(), true, true);
  const auto back_refused = [&](const View& dy, std::optional<View> dx, std::optional<View> dw,
                                const std::string& message) {
    ExpectRefused([=](Stream& t) { ConvolutionBackward(t, x, w, s.window, dy, dx, dw, backward); },
                  "[convolution_backward] " + message);
  };
  back_refused(y, std::nullopt, std::nullopt, "nothing to compute: dx and dw are both left out");
  back_refused(Output({2, 5, 7, 6}), dx, dw, "dy is $T [2, 5, 7, 6], want $T [2, 5, 7, 4]");
  back_refused(y, Output({2, 5, 7, 5}), dw, "dx is $T [2, 5, 7, 5], want $T [2, 5, 7, 6]");
  back_refused(y, dx, Output({4, 3, 3, 2}), "dw is $T [4, 3, 3, 2], want $T [4, 3, 3, 3]");
  back_refused(y, dx, dx.Slice(0, 108).Reshape(WOf(s)), "dw and dx overlap");
  back_refused(y, x, dw, "dx and x overlap");
  ExpectDTypesRefused("convolution_forward", [&](Stream& t) {
    ConvolutionForward(t, Output(XOf(s)), Output(WOf(s)), s.window, Output(YOf(s)), workspace);
  });
  ExpectDTypesRefused("convolution_backward", [&](Stream& t) {
    const View x = Output(XOf(s)), w = Output(WOf(s)), dy = Output(YOf(s));
    const View dx = Output(XOf(s));
    ConvolutionBackward(t, x, w, s.window, dy, dx, Output(WOf(s)), backward);
  });
}

}  // namespace
}  // namespace fsdp
