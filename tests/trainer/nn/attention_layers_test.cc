#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/testing/on_tape.h"
#include "trainer/autograd/kv_cache.h"
#include "trainer/autograd/tape.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/nn/layers.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

constexpr int64_t kSamples = 2, kSeq = 5, kKeys = 7, kDim = 3, kBuckets = 4;
constexpr AttentionHeads kHeads{4, 2};
using Floats = std::vector<float>;

class AttentionLayers : public testing::OnTape {
 protected:
  // A body's result for its inputs, with `dy` as its gradient, and the inputs' gradients: empty for
  // those without a place.
  struct Results {
    Floats y;
    std::vector<Floats> gradients;
    bool operator==(const Results&) const = default;
  };
  Results Run(const std::vector<TensorPtr>& inputs, const Tape::Body& body,
              Recompute recompute = Recompute::kNone, size_t places = 9) {
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, recompute);
    tape.AttendWith(attention_, /*documents=*/true);
    std::vector<Var> vars;
    for (const TensorPtr& input : inputs) {
      vars.emplace_back(input, vars.size() < places ? std::make_shared<TensorPtr>() : nullptr);
    }
    Results results;
    {
      const Var y = tape.Segment(0, vars, /*recomputable=*/true, body);
      const View view = y.view();
      stream_->Synchronize();
      results.y.resize(view.NumElements());
      std::memcpy(results.y.data(), view.data, view.bytes());
      *y.grad = Random(y.shape, "dy");
    }
    tape.Backward();
    stream_->Synchronize();
    for (const Var& var : vars)
      results.gradients.push_back(var.grad ? Values(*var.grad) : Floats());
    return results;
  }
  AttentionBackend attention_ = AttentionBackend::kOwn;  // The tape's.

  // For two ways to add up the same terms.
  static void ExpectNear(const Results& got, const Results& want) {
    const auto near = [](const Floats& a, const Floats& b) {
      return AllNear({a.begin(), a.end()}, {b.begin(), b.end()}, 1e-5);
    };
    EXPECT_TRUE(near(got.y, want.y));
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      EXPECT_TRUE(near(got.gradients[i], want.gradients[i])) << "input " << i;
    }
  }
  TensorPtr Ints(const Shape& shape, const std::vector<int32_t>& values) {
    auto tensor = std::make_shared<Tensor>(allocator_, DType::kInt32, shape);
    std::memcpy(tensor->view().data, values.data(), tensor->view().bytes());
    return tensor;
  }
  TensorPtr BucketsOf(int64_t seq, int64_t keys) {
    std::vector<int32_t> of;
    for (int64_t d = 0; d < seq + keys - 1; ++d) of.push_back(static_cast<int32_t>(d % kBuckets));
    return Ints({seq + keys - 1}, of);
  }
  TensorPtr Table() { return Random({kHeads.heads, kBuckets}, "table"); }
  TensorPtr Qkv() {
    return Random({kSamples * kSeq, (kHeads.heads + 2 * kHeads.kv_heads) * kDim}, "qkv");
  }
  // Columns [begin, begin + n) of each of `rows` rows.
  static Floats Columns(const Floats& all, int64_t rows, int64_t begin, int64_t n) {
    Floats part;
    const int64_t width = static_cast<int64_t>(all.size()) / rows;
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = all.begin() + row * width + begin;
      part.insert(part.end(), at, at + n);
    }
    return part;
  }
  TensorPtr TensorOf(const Floats& values, int64_t rows) {
    const Shape shape{rows, static_cast<int64_t>(values.size()) / rows};
    auto tensor = std::make_shared<Tensor>(allocator_, DType::kFloat32, shape);
    std::memcpy(tensor->view().data, values.data(), tensor->view().bytes());
    return tensor;
  }
};

TEST_F(AttentionLayers, CausalIsCausal) {
  const TensorPtr positions = Ints({kSamples, kSeq}, {0, 1, 2, 0, 1, 0, 1, 2, 3, 4});
  const TensorPtr keys = Ints({kSamples, 2}, {1, 2, 3, 4});
  TokenBatch batch;
  batch.tokens = batch.positions = positions->view();
  batch.sample_keys = keys->view();
  const Attending attending{
      .mask = AttentionMask::kCausal, .positions = positions->view(), .sample_keys = keys->view()};
  for (const double rate : {0.0, 0.3}) {
    const ProbabilityDropout dropout{rate, 3};
    const Results want = Run({Qkv()}, [&](Tape& tape, std::span<const Var> in) {
      return CausalAttention(tape, in[0], batch, kHeads, dropout);
    });
    EXPECT_EQ(want, Run({Qkv()}, [&](Tape& tape, std::span<const Var> in) {
                return SelfAttention(tape, in[0], kSamples, kHeads, attending, dropout);
              }));
  }
}

// Whether q, k and v lie together or not, and however much is made again.
TEST_F(AttentionLayers, CrossIsSelfWithAsManyKeys) {
  const TensorPtr lengths = Ints({kSamples}, {4, 0}), buckets = BucketsOf(kSeq, kSeq);
  const auto attending = [&](const Var& bias) {
    return Attending{.lengths = lengths->view(), .scale = 1.0f, .bias = bias, .buckets = buckets};
  };
  const int64_t rows = kSamples * kSeq, q = kHeads.heads * kDim, kv = 2 * kHeads.kv_heads * kDim;
  const Tape::Body self = [&](Tape& tape, std::span<const Var> in) {
    return SelfAttention(tape, in[0], kSamples, kHeads, attending(in[1]));
  };
  const Results want = Run({Qkv(), Table()}, self);
  const Floats all = Values(Qkv()), dqkv = want.gradients[0];
  const std::vector<TensorPtr> apart = {TensorOf(Columns(all, rows, 0, q), rows),
                                        TensorOf(Columns(all, rows, q, kv), rows), Table()};
  const Results of_cross{
      want.y, {Columns(dqkv, rows, 0, q), Columns(dqkv, rows, q, kv), want.gradients[1]}};
  const Tape::Body cross = [&](Tape& tape, std::span<const Var> in) {
    return CrossAttention(tape, in[0], in[1], kSamples, kHeads, attending(in[2]));
  };
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    EXPECT_EQ(Run({Qkv(), Table()}, self, recompute), want);
    EXPECT_EQ(Run(apart, cross, recompute), of_cross);
  }
  // An input without a place for its gradient leaves the others theirs.
  const Results alone = Run(apart, cross, Recompute::kNone, /*places=*/1);
  EXPECT_EQ(alone.gradients, (std::vector<Floats>{of_cross.gradients[0], {}, {}}));
}

// To rounding, of all that attends, and the same bits however much is made again.
TEST_F(AttentionLayers, MathIsAttentionInTiles) {
  const TensorPtr positions = Ints({kSamples, kSeq}, {0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
  const TensorPtr keys = Ints({kSamples, 2}, {1, 2, 3, 4}), lengths = Ints({kSamples}, {4, 0});
  const TensorPtr buckets = BucketsOf(kSeq, kSeq), more = BucketsOf(kSeq, kKeys);
  TokenBatch batch;
  batch.tokens = batch.positions = positions->view();
  batch.sample_keys = keys->view();
  const TensorPtr rope = Random({kSeq, 2, 2}, "rope");
  const TensorPtr wide = Random({kSamples * kSeq, (kHeads.heads + 2 * kHeads.kv_heads) * 4}, "w");
  const TensorPtr q = Random({kSamples * kSeq, kHeads.heads * kDim}, "q");
  const TensorPtr kv = Random({kSamples * kKeys, 2 * kHeads.kv_heads * kDim}, "kv");
  for (const double rate : {0.0, 0.3}) {
    const ProbabilityDropout dropout{rate, 3};
    const std::vector<std::pair<std::vector<TensorPtr>, Tape::Body>> calls = {
        {{Qkv()},
         [&](Tape& tape, std::span<const Var> in) {
           return CausalAttention(tape, in[0], batch, kHeads, dropout);
         }},
        {{wide},
         [&](Tape& tape, std::span<const Var> in) {
           const Var copy = Residual(tape, in[0], in[0]);  // It is rotated in place.
           return RotaryAttention(tape, copy, batch, kHeads, {rope}, dropout);
         }},
        {{Qkv(), Table()},
         [&](Tape& tape, std::span<const Var> in) {
           const Attending attending{.lengths = lengths->view(),
                                     .scale = 1.0f,
                                     .bias = in[1],
                                     .buckets = buckets,
                                     .sample_keys = keys->view()};
           return SelfAttention(tape, in[0], kSamples, kHeads, attending, dropout);
         }},
        {{q, kv, Table()}, [&](Tape& tape, std::span<const Var> in) {
           const Attending attending{.bias = in[2], .buckets = more, .sample_keys = keys->view()};
           return CrossAttention(tape, in[0], in[1], kSamples, kHeads, attending, dropout);
         }}};
    for (const auto& [inputs, body] : calls) {
      attention_ = AttentionBackend::kOwn;
      const Results tiles = Run(inputs, body);
      attention_ = AttentionBackend::kMath;
      const Results math = Run(inputs, body);
      ExpectNear(math, tiles);
      EXPECT_NE(math, tiles);  // It took the other kernels.
      for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
        EXPECT_EQ(Run(inputs, body, recompute), math);
      }
    }
  }
}

// A parameter as a test binds it.
struct Bound {
  Bound(const TensorPtr& value, bool trainable)
      : value(value),
        grad(static_cast<size_t>(value->view().NumElements())),
        parameter("p", value->view().shape, {}, true) {
    if (!trainable) parameter.Freeze();
    parameter.Bind(value->view(), View(reinterpret_cast<std::byte*>(grad.data()), DType::kFloat32,
                                       value->view().shape));
  }
  TensorPtr value;
  Floats grad;
  Parameter parameter;
};

// Heads that are mixed: the gradients of what they are made of, and of the parameters.
TEST_F(AttentionLayers, MixedHeadsHaveGradients) {
  attention_ = AttentionBackend::kMath;
  const int64_t heads = kHeads.heads;
  std::vector<TensorPtr> values = {Qkv(), Random({heads, heads}, "matrix"),
                                   Random({heads}, "weight"), Random({heads}, "bias")};
  const auto run = [&](const std::vector<TensorPtr>& at, Recompute recompute, bool trainable) {
    Bound matrix(at[1], trainable), weight(at[2], true), bias(at[3], trainable);
    Results results = Run(
        {at[0]},
        [&](Tape& tape, std::span<const Var> in) {
          const Attending attending{
              .mixed = {&matrix.parameter, &weight.parameter, &bias.parameter, 0.1f}};
          return SelfAttention(tape, in[0], kSamples, kHeads, attending);
        },
        recompute);
    results.gradients.insert(results.gradients.end(), {matrix.grad, weight.grad, bias.grad});
    return results;
  };
  const Results got = run(values, Recompute::kNone, true);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    EXPECT_EQ(run(values, recompute, true), got);
  }
  const Results frozen = run(values, Recompute::kNone, false);
  EXPECT_EQ(frozen.gradients[0], got.gradients[0]);
  EXPECT_EQ(frozen.gradients[1], Floats(static_cast<size_t>(heads * heads)));
  EXPECT_EQ(frozen.gradients[2], got.gradients[2]);
  const Floats dy = Values(Random({kSamples * kSeq, heads * kDim}, "dy"));
  const std::vector<double> weights(dy.begin(), dy.end());
  for (size_t i = 0; i < values.size(); ++i) {
    const Floats value = Values(values[i]), of_tape = got.gradients[i];
    const auto loss = [&](const std::vector<double>& moved) {
      std::vector<TensorPtr> at = values;
      at[i] = std::make_shared<Tensor>(allocator_, DType::kFloat32, values[i]->view().shape);
      const Floats floats(moved.begin(), moved.end());
      std::memcpy(at[i]->view().data, floats.data(), at[i]->view().bytes());
      const Floats y = run(at, Recompute::kNone, true).y;
      return Dot(weights, {y.begin(), y.end()});
    };
    const auto want = NumericGradient(loss, {value.begin(), value.end()}, /*h=*/1e-2);
    EXPECT_TRUE(AllNear({of_tape.begin(), of_tape.end()}, want, 5e-3)) << "input " << i;
  }
  attention_ = AttentionBackend::kOwn;
  EXPECT_EQ(run(values, Recompute::kNone, true), got) << "tiles have no probabilities to mix";
}

// Two layers read one encoder's output, and one bias.
TEST_F(AttentionLayers, GradientsAreWhatDifferencesSay) {
  const TensorPtr lengths = Ints({kSamples}, {6, 3}), buckets = BucketsOf(kSeq, kKeys);
  const Tape::Body body = [&](Tape& tape, std::span<const Var> in) {
    const Attending attending{
        .lengths = lengths->view(), .scale = 0.5f, .bias = in[2], .buckets = buckets};
    const Var once = CrossAttention(tape, in[0], in[1], kSamples, kHeads, attending);
    return CrossAttention(tape, once, in[1], kSamples, kHeads, attending);
  };
  const std::vector<TensorPtr> inputs = {
      Random({kSamples * kSeq, kHeads.heads * kDim}, "q"),
      Random({kSamples * kKeys, 2 * kHeads.kv_heads * kDim}, "kv"), Table()};
  const Results got = Run(inputs, body);
  const Floats dy = Values(Random({kSamples * kSeq, kHeads.heads * kDim}, "dy"));
  const std::vector<double> weights(dy.begin(), dy.end());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Floats values = Values(inputs[i]), of_tape = got.gradients[i];
    const auto loss = [&](const std::vector<double>& moved) {
      std::vector<TensorPtr> at = inputs;
      at[i] = TensorOf({moved.begin(), moved.end()}, inputs[i]->view().shape[0]);
      const Floats y = Run(at, body).y;
      return Dot(weights, {y.begin(), y.end()});
    };
    // The loss is fp32: 1e-6 of it over h, and h^2.
    const auto want = NumericGradient(loss, {values.begin(), values.end()}, /*h=*/2e-2);
    EXPECT_TRUE(AllNear({of_tape.begin(), of_tape.end()}, want, 5e-3)) << "input " << i;
  }
}

// A decoder token by token, over a cache of its own tokens and one of an encoder's output, which is
// computed once: the rows of the pass over all tokens.
TEST_F(AttentionLayers, DecodingTokenByTokenGivesTheRowsOfTheWhole) {
  constexpr int64_t kCapacity = kSeq + 2;
  const int64_t width = kHeads.heads * kDim, rows = kSamples * kSeq;
  const TensorPtr lengths = Ints({kSamples}, {6, 3});
  const TensorPtr kv = Random({kSamples * kKeys, 2 * kHeads.kv_heads * kDim}, "kv");
  // The bucket of a distance is the same, however many positions there are.
  const auto buckets = [&](int64_t positions, int64_t keys) {
    std::vector<int32_t> of;
    for (int64_t x = 1 - positions; x < keys; ++x) {
      of.push_back(static_cast<int32_t>((x + 3 * kBuckets) % kBuckets));
    }
    return Ints({positions + keys - 1}, of);
  };
  const auto table = [&] { return Var(Table(), nullptr); };
  // Two layers: over its own tokens, then over the encoder's.
  const auto decode = [&](Tape& tape, const Var& qkv, const View& positions, const TensorPtr& own,
                          const TensorPtr& across, const std::function<Var()>& of_encoder) {
    const bool cached = tape.cache() != nullptr;
    const Var y = SelfAttention(tape, qkv, kSamples, kHeads,
                                {.mask = AttentionMask::kCausal,
                                 .positions = positions,
                                 .scale = 1.0f,
                                 .bias = table(),
                                 .buckets = own});
    return CrossAttention(tape, y, of_encoder, kSamples, kHeads,
                          {.positions = cached ? positions : View(),
                           .lengths = lengths->view(),
                           .bias = table(),
                           .buckets = across});
  };
  std::vector<int32_t> at;
  for (int64_t i = 0; i < rows; ++i) at.push_back(static_cast<int32_t>(i % kSeq));
  const auto tape_of = [&] {
    return std::make_unique<Tape>(*stream_, allocator_, journal_, /*record=*/false,
                                  Recompute::kNone);
  };
  const Floats qkv = Values(Qkv());
  const TensorPtr positions = Ints({kSamples, kSeq}, at);
  const auto whole = tape_of();
  const Var want = decode(*whole, Var(Qkv(), nullptr), positions->view(), buckets(kSeq, kSeq),
                          buckets(kSeq, kKeys), [&] { return Var(kv, nullptr); });
  stream_->Synchronize();
  const Shape shape = want.shape;
  const float* const all = want.view().As<float>();

  const Shape cache_shape{kSamples, kCapacity, kHeads.kv_heads, kDim};
  const TensorPtr k = Random(cache_shape, "k"), v = Random(cache_shape, "v");  // Nobody looks.
  const TensorPtr encoded = Random(kv->view().shape, "encoded");
  KvCache cache(kCapacity, {{k->view(), v->view()}}, {{encoded->view()}});
  int encodings = 0;
  for (int64_t token = 0; token < kSeq; ++token) {
    Floats one;
    const auto columns = static_cast<int64_t>(qkv.size()) / rows;
    for (int64_t b = 0; b < kSamples; ++b) {
      const auto begin = qkv.begin() + (b * kSeq + token) * columns;
      one.insert(one.end(), begin, begin + columns);
    }
    const TensorPtr now =
        Ints({kSamples, 1}, std::vector<int32_t>(kSamples, static_cast<int32_t>(token)));
    const auto tape = tape_of();
    tape->Use(&cache);
    cache.Begin();
    const Var got = decode(*tape, Var(TensorOf(one, kSamples), nullptr), now->view(),
                           buckets(kCapacity, kCapacity), buckets(kSeq, kKeys), [&] {
                             ++encodings;
                             return Var(kv, nullptr);
                           });
    stream_->Synchronize();
    for (int64_t b = 0; b < kSamples; ++b) {
      for (int64_t i = 0; i < width; ++i) {
        EXPECT_NEAR(got.view().As<float>()[b * width + i], all[(b * kSeq + token) * width + i],
                    1e-5)
            << "token " << token;
      }
    }
  }
  EXPECT_EQ(encodings, 1);
  EXPECT_EQ(shape, (Shape{rows, width}));
}

// Whatever the tape would take for causal attention of whole rows.
TEST(AttentionLayerDeathTest, TakesOurOwnKernelsForOtherMasks) {
  SimDevice device({}, nullptr, DeviceType::kCuda);
  std::vector<int64_t> workspaces;
  device.Observe([&](const Operation& operation, const Stream&) {
    workspaces.push_back(operation.writes.back().bytes);
  });
  const std::unique_ptr<Stream> stream = device.CreateStream("compute");
  testing::CountingAllocator allocator;
  testing::Journal journal;
  const auto tensor = [&](const Shape& shape) {
    return Var(std::make_shared<Tensor>(allocator, DType::kBFloat16, shape), nullptr);
  };
  Tape tape(*stream, allocator, journal, /*record=*/false, Recompute::kNone);
  tape.AttendWith(AttentionBackend::kCudnn, /*documents=*/false);
  SelfAttention(tape, tensor({10, 6 * 16}), 2, {4, 1}, {});
  CrossAttention(tape, tensor({10, 4 * 16}), tensor({14, 2 * 16}), 2, {4, 1}, {});
  EXPECT_EQ(workspaces, (std::vector<int64_t>{0, 0}));
  KvCache cache(8, {});
  tape.Use(&cache);
  EXPECT_DEATH(SelfAttention(tape, tensor({10, 6 * 16}), 2, {4, 1}, {}), "a cache is of causal");
}

}  // namespace
}  // namespace fsdp
