// Against attention without a cache, which has an oracle of its own: the tokens of a sequence one
// after the other, or in pieces, give the same rows.
#include "trainer/ops/attention_cached.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/core/errors.h"
#include "trainer/ops/attention.h"

namespace fsdp {
namespace {

struct Case {
  int64_t batch, seq, heads, kv_heads, head_dim;
};
// On CUDA eight lanes have a key, up to 16 keys at a time; Qwen2's heads.
constexpr Case kCases[] = {{1, 1, 1, 1, 1},   {2, 9, 6, 2, 8},   {2, 19, 4, 1, 5},
                           {1, 33, 2, 2, 16}, {1, 6, 14, 2, 64}, {1, 17, 2, 1, 80},
                           {1, 3, 1, 1, 250}, {1, 3, 1, 1, 256}};

class AttentionCachedTest : public OpTest {
 protected:
  int64_t Bytes(const Case& c, int64_t n, int64_t capacity) const {
    return AttentionCachedWorkspaceBytes({c.batch, n, c.heads, c.kv_heads, c.head_dim, capacity},
                                         dtype(), kernel_type());
  }
  // qkv packed: [batch, seq, heads + 2 kv_heads, head_dim].
  static AttentionInputs Inputs(const Case& c, const View& qkv, const View& positions) {
    AttentionInputs in;
    in.q = ConstHeads(qkv, 0, c.heads);
    in.k = ConstHeads(qkv, c.heads, c.kv_heads);
    in.v = ConstHeads(qkv, c.heads + c.kv_heads, c.kv_heads);
    in.positions = positions;
    return in;
  }
};
FSDP_INSTANTIATE_OP_TEST(AttentionCachedTest, kF32, kBF16, kF16);  // Dtypes of the cache, too.

TEST_P(AttentionCachedTest, PiecesGiveTheRowsOfTheWhole) {
  for (const Case& c : kCases) {
    Random random(3, dtype());
    const int64_t all = c.heads + 2 * c.kv_heads, row = all * c.head_dim;
    const auto qkv = random.Vector(c.batch * c.seq * row);
    std::vector<double> positions;
    for (int64_t i = 0; i < c.batch * c.seq; ++i) positions.push_back(i % c.seq);
    const View whole = Input({c.batch, c.seq, all, c.head_dim}, qkv);
    const View out = Output({c.batch, c.seq, c.heads, c.head_dim});
    const View lse = Output({c.batch, c.heads, c.seq}, kF32);
    const AttentionDims dims{c.batch, c.seq, c.heads, c.kv_heads, c.head_dim};
    const View scratch = Workspace(AttentionForwardWorkspaceBytes(dims, dtype(), kernel_type()));
    const View where = Input({c.batch, c.seq}, positions, DType::kInt32);
    Run([&](Stream& s) { AttentionForward(s, Inputs(c, whole, where), out, lse, scratch); });
    const std::vector<double> want = Get(out);

    for (const int64_t piece : {int64_t{1}, int64_t{4}, c.seq}) {
      // The cache has more room than tokens. Rows that are not written yet are NaN, and must not be
      // read.
      const Shape cache{c.batch, c.seq + 3, c.kv_heads, c.head_dim};
      const View cache_k = Output(cache), cache_v = Output(cache);
      for (int64_t begin = 0; begin < c.seq; begin += piece) {
        const int64_t n = std::min(piece, c.seq - begin);
        std::vector<double> part, at, expected;
        for (int64_t b = 0; b < c.batch; ++b) {
          const int64_t first = b * c.seq + begin;
          part.insert(part.end(), qkv.begin() + first * row, qkv.begin() + (first + n) * row);
          at.insert(at.end(), positions.begin() + first, positions.begin() + first + n);
          const int64_t width = c.heads * c.head_dim;
          expected.insert(expected.end(), want.begin() + first * width,
                          want.begin() + (first + n) * width);
        }
        const View qkv_part = Input({c.batch, n, all, c.head_dim}, part);
        const View at_part = Input({c.batch, n}, at, DType::kInt32);
        const View got = Output({c.batch, n, c.heads, c.head_dim});
        const View workspace = Workspace(Bytes(c, n, cache[1]));
        Run([&](Stream& s) {
          AttentionCached(s, Inputs(c, qkv_part, at_part), cache_k, cache_v, got, workspace);
        });
        EXPECT_TRUE(AllNear(Get(got), expected, Tolerance(dtype(), 2 * (c.seq + c.head_dim))))
            << c.seq << " tokens from " << begin;
      }
    }
    Clear();
  }
}

// A decoder's own tokens, with a bias by distance and another scale. The cache has room for more
// tokens, and the buckets cover as many positions as it has room for.
TEST_P(AttentionCachedTest, PiecesWithABiasGiveTheRowsOfTheWhole) {
  constexpr int64_t kBuckets = 7, kMore = 3;
  for (const Case& c : {Case{2, 9, 6, 2, 8}, Case{1, 33, 2, 2, 16}, Case{1, 17, 2, 1, 80}}) {
    Random random(4, dtype());
    const int64_t all = c.heads + 2 * c.kv_heads, row = all * c.head_dim;
    const auto qkv = random.Vector(c.batch * c.seq * row);
    const auto table = random.Vector(c.heads * kBuckets);
    // For distances from -(positions - 1) on.
    const auto buckets = [&](int64_t positions) {
      std::vector<double> of;
      for (int64_t x = 1 - positions; x < positions; ++x) {
        of.push_back(static_cast<double>((x * x + x + 3 * kBuckets) % kBuckets));
      }
      return Input({2 * positions - 1}, of, DType::kInt32);
    };
    std::vector<double> positions;
    for (int64_t i = 0; i < c.batch * c.seq; ++i) positions.push_back(i % c.seq);
    const View out = Output({c.batch, c.seq, c.heads, c.head_dim});
    const View lse = Output({c.batch, c.heads, c.seq}, kF32);
    AttentionInputs whole = Inputs(c, Input({c.batch, c.seq, all, c.head_dim}, qkv),
                                   Input({c.batch, c.seq}, positions, DType::kInt32));
    whole.scale = 1;
    whole.bias = {Input({c.heads, kBuckets}, table), buckets(c.seq)};
    const AttentionDims dims{c.batch, c.seq, c.heads, c.kv_heads, c.head_dim, c.seq, /*bias=*/true};
    const View scratch = Workspace(AttentionForwardWorkspaceBytes(dims, dtype(), kernel_type()));
    Run([&](Stream& s) { AttentionForward(s, whole, out, lse, scratch); });
    const std::vector<double> want = Get(out);

    const Shape cache{c.batch, c.seq + kMore, c.kv_heads, c.head_dim};
    const View cache_k = Output(cache), cache_v = Output(cache);
    const AttentionBias bias{whole.bias.table, buckets(c.seq + kMore)};
    for (int64_t begin = 0; begin < c.seq; begin += 4) {
      const int64_t n = std::min<int64_t>(4, c.seq - begin), width = c.heads * c.head_dim;
      std::vector<double> part, at, expected;
      for (int64_t b = 0; b < c.batch; ++b) {
        const int64_t first = b * c.seq + begin;
        part.insert(part.end(), qkv.begin() + first * row, qkv.begin() + (first + n) * row);
        at.insert(at.end(), positions.begin() + first, positions.begin() + first + n);
        expected.insert(expected.end(), want.begin() + first * width,
                        want.begin() + (first + n) * width);
      }
      AttentionInputs in = Inputs(c, Input({c.batch, n, all, c.head_dim}, part),
                                  Input({c.batch, n}, at, DType::kInt32));
      in.scale = 1;
      in.bias = bias;
      const View got = Output({c.batch, n, c.heads, c.head_dim});
      const View workspace = Workspace(Bytes(c, n, cache[1]));
      Run([&](Stream& s) { AttentionCached(s, in, cache_k, cache_v, got, workspace); });
      // Scores are three times as large as with the default scale, and exp makes a relative error
      // of their absolute one.
      EXPECT_TRUE(AllNear(Get(got), expected, Tolerance(dtype(), 2 * (c.seq + c.head_dim), 4)))
          << c.seq << " tokens from " << begin;
    }
    Clear();
  }
}

// New tokens over an encoder's keys and values, computed once: the rows of all tokens, whatever
// lies behind a row's length, and nothing where it has no keys.
TEST_P(AttentionCachedTest, TokensSeeKeysThatAreThere) {
  constexpr int64_t kBuckets = 5;
  struct OverKeys {
    Case c;
    int64_t keys;
    std::vector<int64_t> lengths;
    std::optional<float> scale;
    bool biased;
  };
  for (const OverKeys& o : std::vector<OverKeys>{
           {{3, 5, 4, 2, 8}, 37, {37, 0, 18}, {}, false},
           {{2, 4, 2, 2, 16}, 7, {}, 1.0f, false},
           {{2, 6, 2, 1, 20}, 40, {16, 33}, 0.5f, true},
           {{1, 3, 1, 1, 250}, 19, {}, {}, true},
           {{1, 2, 1, 1, 4}, 1, {}, {}, false},
       }) {
    const Case& c = o.c;
    Random random(5, dtype());
    const Shape q_shape{c.batch, c.seq, c.heads, c.head_dim};
    const int64_t width = c.heads * c.head_dim, kv_row = (2 * c.kv_heads + 1) * c.head_dim;
    const auto q = random.Vector(c.batch * c.seq * width);
    auto kv = random.Vector(c.batch * o.keys * kv_row);
    for (int64_t b = 0; b < c.batch && !o.lengths.empty(); ++b) {
      std::fill(kv.begin() + (b * o.keys + o.lengths[b]) * kv_row,
                kv.begin() + (b + 1) * o.keys * kv_row, std::nan(""));
    }
    const View tensor = Input({c.batch, o.keys, 2 * c.kv_heads + 1, c.head_dim}, kv);
    AttentionInputs in;
    in.mask = AttentionMask::kFull;
    in.scale = o.scale;
    in.k = ConstHeads(tensor, 1, c.kv_heads);
    in.v = ConstHeads(tensor, 1 + c.kv_heads, c.kv_heads);
    if (!o.lengths.empty()) {
      in.lengths = Input({c.batch}, {o.lengths.begin(), o.lengths.end()}, DType::kInt32);
    }
    if (o.biased) {
      std::vector<double> of;
      for (int64_t x = 0; x < c.seq + o.keys - 1; ++x) of.push_back(x * x % kBuckets);
      in.bias = {Input({c.heads, kBuckets}, random.Vector(c.heads * kBuckets)),
                 Input({c.seq + o.keys - 1}, of, DType::kInt32)};
    }
    AttentionInputs whole = in;
    whole.q = ConstHeads(Input(q_shape, q), 0, c.heads);
    const View out = Output(q_shape), lse = Output({c.batch, c.heads, c.seq}, kF32);
    const AttentionDims dims{c.batch, c.seq, c.heads, c.kv_heads, c.head_dim, o.keys, o.biased};
    const View scratch = Workspace(AttentionForwardWorkspaceBytes(dims, dtype(), kernel_type()));
    Run([&](Stream& s) { AttentionForward(s, whole, out, lse, scratch); });
    const std::vector<double> want = Get(out);
    for (int64_t token = 0; token < c.seq; ++token) {
      std::vector<double> one, expected;
      for (int64_t b = 0; b < c.batch; ++b) {
        const int64_t begin = (b * c.seq + token) * width;
        one.insert(one.end(), q.begin() + begin, q.begin() + begin + width);
        expected.insert(expected.end(), want.begin() + begin, want.begin() + begin + width);
      }
      in.q = ConstHeads(Input({c.batch, 1, c.heads, c.head_dim}, one), 0, c.heads);
      if (o.biased) {
        in.positions = Input({c.batch, 1}, std::vector<double>(c.batch, token), DType::kInt32);
      }
      const View got = Output({c.batch, 1, c.heads, c.head_dim});
      const View workspace = Workspace(Bytes(c, 1, o.keys));
      Run([&](Stream& s) { AttentionCached(s, in, {}, {}, got, workspace); });
      EXPECT_TRUE(AllNear(Get(got), expected, Tolerance(dtype(), 2 * (o.keys + c.head_dim), 4)))
          << "token " << token << " of " << o.keys << " keys";
      for (int64_t b = 0; b < c.batch && !o.lengths.empty(); ++b) {
        if (o.lengths[b] > 0) continue;
        const std::vector<double> all = Get(got);
        EXPECT_EQ(std::count(all.begin() + b * width, all.begin() + (b + 1) * width, 0.0), width);
      }
      EXPECT_EQ(LaunchesOf(costs()).kernels, 1);
    }
    Clear();
  }
}

// Scores of 200, beside which the others, of 0, are nothing: the row of v of the one key that has
// it, wherever it lies among the lanes and warps of CUDA.
TEST_P(AttentionCachedTest, OneKeyOutweighsAllOthers) {
  constexpr int64_t kKeys = 19, kDim = 4;
  const Case c{1, 1, 1, 1, kDim};
  for (int64_t heavy = 0; heavy < kKeys; ++heavy) {
    std::vector<double> keys((kKeys - 1) * kDim), values = keys;
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    if (heavy < kKeys - 1) keys[heavy * kDim] = 20;
    keys.resize(kKeys * kDim), values.resize(kKeys * kDim);  // The last comes with its query.
    // q, k and v of the last token: a score is q . k / 2.
    const View qkv = Input({1, 1, 3, kDim},
                           {20, 0, 0, 0, heavy == kKeys - 1 ? 20.0 : 0.0, 0, 0, 0, -1, -2, -3, -4});
    const View at = Input({1, 1}, {kKeys - 1}, DType::kInt32);
    const Shape cache{1, kKeys, 1, kDim};
    const View cache_k = Input(cache, keys), cache_v = Input(cache, values);
    const View out = Output({1, 1, 1, kDim}), workspace = Workspace(Bytes(c, 1, kKeys));
    Run([&](Stream& s) {
      AttentionCached(s, Inputs(c, qkv, at), cache_k, cache_v, out, workspace);
    });
    const std::vector<double> want = heavy == kKeys - 1
                                         ? std::vector<double>{-1, -2, -3, -4}
                                         : std::vector<double>(values.begin() + heavy * kDim,
                                                               values.begin() + (heavy + 1) * kDim);
    EXPECT_EQ(Get(out), want) << "key " << heavy;
    Clear();
  }
}

TEST_P(AttentionCachedTest, RefusesWrongArguments) {
  const Case c{2, 1, 3, 2, 4}, d{2, 1, 5, 1, 4};
  const View qkv = Output({2, 1, 7, 4}), positions = Output({2, 1}, DType::kInt32);
  const View k = Output({2, 5, 1, 4}), v = Output({2, 5, 1, 4}), wide = Output({2, 1, 5, 4});
  const View workspace = Workspace(Bytes(d, 1, 5));
  const auto call = [&](const Case& c, const View& v, const View& out, const View& workspace) {
    return [=](Stream& s) { AttentionCached(s, Inputs(c, qkv, positions), k, v, out, workspace); };
  };
  ExpectRefused(call(c, v, Output({2, 1, 3, 4}), workspace), "[attention_cached] the heads of k");
  ExpectRefused(call(d, k, wide, workspace), "cache_k and cache_v overlap");
  ExpectRefused(call(d, v, Output({2, 1, 3, 4}), workspace), "out is $T");
  if (Bytes(d, 1, 5) > 0) {
    ExpectRefused(call(d, v, wide, Workspace(4)), "workspace has 4 bytes, want >= 128");
  }
  ExpectRefused(call(d, v, wide, View(v.data, DType::kUInt8, {128})),
                "cache_v and workspace overlap");
  const auto with = [&](const auto& change) {
    AttentionInputs in = Inputs(d, qkv, positions);
    change(in);
    return [=](Stream& s) { AttentionCached(s, in, k, v, wide, workspace); };
  };
  ExpectRefused(with([](AttentionInputs& in) { in.scale = -1; }), "scale, want a positive number");
  const View lengths = Output({2}, DType::kInt32);
  ExpectRefused(with([&](AttentionInputs& in) { in.lengths = lengths; }), "lengths, which");
  const View table = Output({5, 1}), buckets = Output({4}, DType::kInt32);
  ExpectRefused(with([&](AttentionInputs& in) {
                  in.bias = {table, buckets};
                }),
                "bias.buckets, want one for each key and position");
  ExpectRefused(with([&](AttentionInputs& in) {
                  in.bias = {Output({4, 1}), buckets};
                }),
                "bias.table is $T [4, 1]");
  ExpectRefused(with([](AttentionInputs& in) { in.mask = AttentionMask::kFull; }),
                "a cache, where");
  ExpectRefused(with([&](AttentionInputs& in) {
                  in.dropout = {0.5, 0, lengths};
                }),
                "dropout.rate, want 0");
  const auto over_keys = [&](const auto& change) {
    AttentionInputs in = Inputs(d, qkv, {});
    in.mask = AttentionMask::kFull;
    change(in);
    return [=](Stream& s) { AttentionCached(s, in, {}, {}, wide, workspace); };
  };
  ExpectRefused(over_keys([&](AttentionInputs& in) { in.positions = positions; }),
                "positions, which a full mask has with a bias alone");
  ExpectRefused(over_keys([&](AttentionInputs& in) {
                  in.bias = {table, buckets};
                }),
                "positions is");
  ExpectRefused(over_keys([&](AttentionInputs& in) { in.lengths = Output({3}, DType::kInt32); }),
                "lengths is int32 [3]");
  ExpectRefused(over_keys([&](AttentionInputs& in) {
                  in.k = Heads(Output({2, 3, 1, 4}), 0, 1);
                }),
                "v is 1 heads of [2, 1, 7, 4]");
  EXPECT_THROW(AttentionCachedWorkspaceBytes({}, DType::kInt32, kernel_type()),
               std::invalid_argument);
  ExpectDTypesRefused("attention_cached", [&](Stream& s) {
    const AttentionInputs in{Heads(Output({2, 1, 5, 4}), 0, 5), Heads(Output({2, 1, 1, 4}), 0, 1),
                             Heads(Output({2, 1, 1, 4}), 0, 1), Output({2, 1}, DType::kInt32)};
    const View k = Output({2, 5, 1, 4}), v = Output({2, 5, 1, 4});
    AttentionCached(s, in, k, v, Output({2, 1, 5, 4}), workspace);
  });
}

}  // namespace
}  // namespace fsdp
