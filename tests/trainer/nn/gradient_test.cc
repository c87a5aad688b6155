// The gradient of a whole tiny model's loss against differences of the loss, and what
// recomputation costs and saves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/testing/everything.h"
#include "tests/testing/tiny_run.h"

namespace fsdp::testing {
namespace {

TinyRun OneStep() {
  TinyRun run;
  run.config.num_hidden_layers = 2;
  run.options.executor.sample_length = 5;
  run.options.executor.max_norm = 0;
  run.options.global_batch_size = 2;
  run.options.lr.lr = 0;
  run.steps = 1;
  run.check = false;
  return run;
}

// L(w + h v) of the slice `name` alone.
double LossAt(const TinyRun& run, const Tensors& initial, const std::string& name,
              const std::vector<float>& v, double h) {
  TinyRun moved = run;
  moved.initial = [&](const Parameter& p, int64_t begin, std::span<float> values) {
    for (const SlicePiece& piece : SlicePieces(p, begin, static_cast<int64_t>(values.size()))) {
      const std::vector<float>& w = initial.at(piece.slice->name);
      for (int64_t i = 0; i < piece.count; ++i) {
        float& value = values[piece.at + i];
        value = w[piece.begin + i];
        if (piece.slice->name == name) value += static_cast<float>(h * v[piece.begin + i]);
      }
    }
  };
  return Train(moved).losses.at(0);
}

// Central differences D(h) = (L(w + h v) - L(w - h v)) / 2h. Their error: the term in h^2, of which
// D(2h) - D(h) is three times the leading part, and the rounding of L, a mean of a few float32
// numbers of its own size, 2^-22 of it in all, over h.
void ExpectGradientOfDifferences(const TinyRun& run) {
  const TinyResult base = Train(run);
  const double noise = std::ldexp(base.losses.at(0), -22);
  const double h = 0.02;
  double worst = 0;
  size_t i = 0;
  for (const auto& [name, gradient] : base.gradients) {
    const size_t n = gradient.size();
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + 2, order.end(), [&](size_t a, size_t b) {
      return std::abs(gradient[a]) > std::abs(gradient[b]);
    });
    // The two steepest elements, and all elements together, along their signs: a run takes one
    // direction of every third parameter.
    for (int direction = 0; direction < 3; ++direction) {
      if (OfAnotherPart(i++, 9)) continue;
      std::vector<float> v(n, 0);
      if (direction < 2) {
        v[order[direction]] = 1;
      } else {
        for (size_t i = 0; i < n; ++i) {
          v[i] = std::copysign(1 / std::sqrt(static_cast<float>(n)), gradient[i]);
        }
      }
      double slope = 0;
      for (size_t i = 0; i < n; ++i) slope += static_cast<double>(v[i]) * gradient[i];
      const auto difference = [&](double step) {
        return (LossAt(run, base.initial, name, v, step) -
                LossAt(run, base.initial, name, v, -step)) /
               (2 * step);
      };
      const double near = difference(h), far = difference(2 * h);
      const double accepted = std::abs(far - near) + noise / h;
      EXPECT_LE(std::abs(slope - near), accepted) << name << ", direction " << direction;
      // Else half a gradient would do.
      EXPECT_LT(accepted, std::abs(slope) / 4) << name << ", direction " << direction;
      worst = std::max(worst, std::abs(slope - near) / accepted);
    }
  }
  std::printf("worst: %.3f of what is accepted\n", worst);
}

TEST(Gradient, OfGpt2IsWhatDifferencesSay) { ExpectGradientOfDifferences(OneStep()); }

// With dropout the loss is another function, and no less a smooth one: the same elements fall away.
TEST(Gradient, OfDropoutIsWhatDifferencesSay) {
  TinyRun run = OneStep();
  run.config.embedding_dropout = 0.2;
  run.config.residual_dropout = 0.3;
  run.config.attention_dropout = 0.25;
  ExpectGradientOfDifferences(run);
}

// Adapters that see a part of what their layers read, and parameters that train whole beside them.
TEST(Gradient, OfAdaptersIsWhatDifferencesSay) {
  TinyRun run = OneStep();
  run.lora = LoraOptions{
      .rank = 2, .alpha = 6, .targets = {"c_attn"}, .dropout = 0.3, .full = {"*ln_f*", "wte"}};
  ExpectGradientOfDifferences(run);
}

TEST(Gradient, OfLlamaIsWhatDifferencesSay) {
  TinyRun run = OneStep();
  run.llama = TinyRun::TinyLlama();
  run.positions = [](int64_t, int64_t sample, std::span<int32_t> positions) {
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<int32_t>(i < 3 || sample > 0 ? i : i - 3);
    }
  };
  ExpectGradientOfDifferences(run);
}

// By attention that keeps its probabilities, in groups of heads.
TEST(Gradient, OfMathIsWhatDifferencesSay) {
  TinyRun run = OneStep();
  run.llama = TinyRun::TinyLlama();
  run.llama->num_hidden_layers = 1;
  run.llama->attention_dropout = 0.25;
  run.options.executor.attention = AttentionBackend::kMath;
  ExpectGradientOfDifferences(run);
}

TEST(Recomputation, OneBlockGivesTheSameBits) {
  for (const AttentionBackend attention : {AttentionBackend::kOwn, AttentionBackend::kMath}) {
    TinyRun run;
    run.config.num_hidden_layers = 1;
    run.config.attention_dropout = attention == AttentionBackend::kMath ? 0.2 : 0;
    run.options.executor.attention = attention;
    const TinyResult none = Train(run);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      run.options.executor.recompute = recompute;
      EXPECT_EQ(FirstDifference(Train(run), none), "");
    }
  }
}

int64_t ActivationBytes(int64_t layers, Recompute recompute,
                        AttentionBackend attention = AttentionBackend::kOwn, double rate = 0) {
  TinyRun run;
  run.options.executor.attention = attention;
  run.config.attention_dropout = rate;
  run.world = 2;
  run.config.num_hidden_layers = layers;
  run.options.executor.recompute = recompute;
  return PlannedActivations(run);
}

TEST(Recomputation, KeepsLess) {
  for (const int64_t layers : {2, 3, 8}) {
    const int64_t none = ActivationBytes(layers, Recompute::kNone);
    const int64_t selective = ActivationBytes(layers, Recompute::kSelective);
    const int64_t full = ActivationBytes(layers, Recompute::kFull);
    EXPECT_LT(selective, none) << layers;
    EXPECT_LT(full, selective) << layers;
  }
}

// The bytes that one more layer keeps of forward: in rows of 22 tokens, with c = 24 columns and
// f = 52 in the feed-forward.
//   full       the block's input
//   selective  the inputs of both norms, qkv, GELU's input, mean and rstd of the norms; log-sum-exp
//              and the rest are computed again
//   none       also both norms' results, attention's with its log-sum-exp, and GELU's
TEST(Recomputation, KeepsWhatItSays) {
  const auto layer = [](Recompute recompute) {
    return ActivationBytes(9, recompute) - ActivationBytes(8, recompute);
  };
  const auto floats = [](std::initializer_list<int64_t> counts) {
    int64_t bytes = 0;
    for (const int64_t n : counts) bytes += (4 * n + 63) / 64 * 64;  // Blocks begin at 64 bytes.
    return bytes;
  };
  constexpr int64_t r = 22, c = 24, f = 52, heads = 3;
  EXPECT_EQ(layer(Recompute::kFull), floats({r * c}));
  EXPECT_EQ(layer(Recompute::kSelective), floats({r * c, r * c, r * 3 * c, r * f, r, r, r, r}));
  EXPECT_EQ(layer(Recompute::kNone), floats({r * c, r * c, r * 3 * c, r * f, r, r, r, r, r * c,
                                             r * c, r * c, r * f, r * heads}));
}

// In place of the log-sum-exp of a query the probabilities of all keys, and with dropout what is
// left of them; selective makes both again.
TEST(Recomputation, MathKeepsProbabilities) {
  const auto more = [](Recompute recompute, double rate) {
    const auto layer = [&](AttentionBackend attention) {
      return ActivationBytes(9, recompute, attention, rate) -
             ActivationBytes(8, recompute, attention, rate);
    };
    return layer(AttentionBackend::kMath) - layer(AttentionBackend::kOwn);
  };
  const auto bytes = [](int64_t floats) { return (4 * floats + 63) / 64 * 64; };
  constexpr int64_t samples = 2, seq = 11, heads = 3;
  const int64_t scores = bytes(samples * heads * seq * seq), lse = bytes(samples * heads * seq);
  EXPECT_EQ(more(Recompute::kNone, 0), scores - lse);
  EXPECT_EQ(more(Recompute::kNone, 0.1), 2 * scores - lse);
  EXPECT_EQ(more(Recompute::kSelective, 0.1), 0);
  EXPECT_EQ(more(Recompute::kFull, 0.1), 0);
}

}  // namespace
}  // namespace fsdp::testing
