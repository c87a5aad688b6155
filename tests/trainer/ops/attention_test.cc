#include "trainer/ops/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/cpu/gemm/gemm_pairs.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/ops/cudnn/attention_cudnn.h"

namespace fsdp {
namespace {

const LaunchedKernels launched_kernels(__FILE__, {"attention_backward_cuda"});

// Where q, k and v lie: in one tensor, as the models have them, or q and k apart from v, or q apart
// from k and v, between heads of others.
enum class Place { kPacked, kApart, kCross };

struct Case {
  int64_t batch, seq, heads, kv_heads, head_dim;
  std::vector<int64_t> documents = {};  // Lengths, over and over; empty: one a row.
  Place place = Place::kPacked;
  double rate = 0;  // Dropout's.
  AttentionBackend backend = AttentionBackend::kOwn;
  std::optional<float> scale = {};
  AttentionMask mask = AttentionMask::kCausal;
  int64_t keys = seq;
  std::vector<int64_t> lengths = {};  // By sample; empty: none.
  int64_t buckets = 0;                // The bias's; 0: none.

  bool causal() const { return mask == AttentionMask::kCausal; }
  double Scale() const { return scale ? *scale : 1 / std::sqrt(head_dim); }
  // The samples' keys, two words each.
  std::vector<double> Keys() const {
    std::vector<double> keys;
    for (int64_t b = 0; b < batch; ++b) {
      keys.insert(keys.end(), {7919.0 + static_cast<double>(b), -104729.0 * (b + 1)});
    }
    return keys;
  }
  AttentionDims Dims() const {
    return {batch, seq, heads, std::max<int64_t>(1, kv_heads), head_dim, keys, buckets > 0};
  }
  Shape Q() const { return {batch, seq, heads, head_dim}; }
  Shape K() const { return {batch, keys, kv_heads, head_dim}; }
  Shape Bias() const { return {heads, buckets}; }
  // One after the other comes again, and of many some never.
  std::vector<double> Buckets() const {
    std::vector<double> of;
    for (int64_t d = 0; buckets > 0 && d < Dims().distances(); ++d) {
      of.push_back(static_cast<double>((d * d / 3 + d) % buckets));
    }
    return of;
  }
  Shape Lse() const { return {batch, heads, seq}; }
  int64_t Terms() const { return (std::max(seq, keys) + head_dim) * Dims().group(); }
  std::vector<double> Positions() const {
    std::vector<double> positions;
    for (int64_t b = 0; b < batch; ++b) {
      size_t document = static_cast<size_t>(b);  // Rows differ.
      int64_t at = 0;
      for (int64_t i = 0; i < seq; ++i) {
        if (!documents.empty() && at == documents[document % documents.size()]) {
          at = 0;
          ++document;
        }
        positions.push_back(static_cast<double>(at++));
      }
    }
    return positions;
  }
};
Case ByCudnn(Case c, AttentionBackend backend = AttentionBackend::kCudnn) {
  c.backend = backend;
  return c;
}
Case Full(Case c) {
  c.mask = AttentionMask::kFull;
  return c;
}
Case Cross(Case c, int64_t keys) {
  c.keys = keys;
  c.place = Place::kCross;
  return Full(c);
}
Case Biased(int64_t buckets, Case c) {
  c.buckets = buckets;
  return c;
}
Case Up(std::vector<int64_t> to, Case c) {
  c.lengths = std::move(to);
  return c;
}
Case Scaled(Case c, float scale) {
  c.scale = scale;
  return c;
}

// Odd everything; groups, documents that begin at, before and after a tile's border. On the CPU
// around a tile of 48 and its blocks of 6 and 16; on CUDA around tiles of 16 to 128 rows and of 64,
// 128 and 256 columns.
const std::vector<Case>& Cases(DeviceType device) {
  static const std::vector<Case> cpu = {
      {1, 1, 1, 1, 1},
      {2, 1, 3, 3, 5},
      {1, 2, 1, 1, 64},
      {2, 37, 3, 3, 21},
      {1, 48, 2, 2, 16},
      {1, 49, 1, 1, 17},
      {1, 97, 3, 3, 64},
      {1, 150, 2, 2, 33},
      {1, 53, 1, 1, 256},
      {1, 53, 6, 2, 10},
      {2, 100, 8, 1, 7},
      {1, 60, 4, 2, 12, {}, Place::kApart},
      {2, 150, 2, 2, 9, {48, 1, 47, 30}},
      {1, 200, 4, 2, 5, {50, 49, 97}, Place::kApart},
      {2, 61, 2, 1, 20, {1}},
      {1, 130, 1, 1, 8, {120, 3}},
      {1, 97, 3, 3, 64, {}, Place::kPacked, 0.1},
      {1, 53, 6, 2, 10, {}, Place::kApart, 0.5},
      {2, 150, 4, 2, 9, {48, 1, 47, 30}, Place::kPacked, 0.3},
      Full({1, 1, 1, 1, 1}),
      Full({2, 37, 3, 3, 21}),
      Full({1, 97, 4, 2, 20}),
      Full({1, 150, 2, 1, 9, {48, 1, 47, 30}, Place::kApart, 0.3}),
      Full({1, 130, 1, 1, 8, {120, 3}}),
      Cross({2, 37, 4, 2, 12, {}, Place::kCross, 0.2}, 53),
      Cross({1, 100, 2, 1, 16}, 49),
      Cross({2, 49, 2, 2, 5}, 1),
      Cross({1, 1, 1, 1, 256}, 130),
      Cross({1, 60, 2, 1, 33}, 48),
      Cross({1, 5, 2, 1, 8}, 0),
      Cross({1, 0, 2, 1, 8}, 5),
      Up({0, 1, 33, 37}, Full({4, 37, 3, 3, 21})),
      Up({48, 96, 0, 100}, Cross({4, 50, 1, 1, 16, {}, Place::kCross, 0.2}, 100)),
      Up({0, 49, 100}, {3, 100, 2, 1, 7}),
      Up({48, 97}, {2, 97, 1, 1, 16, {50, 30}, Place::kApart}),
      Up({90, 3}, Full({2, 130, 1, 1, 8, {60, 1, 40}})),
      Biased(7, {2, 37, 3, 3, 21}),
      Biased(1, Full({1, 1, 1, 1, 1})),
      Biased(150, Full({1, 97, 2, 1, 20})),
      Biased(32, Cross({2, 50, 2, 1, 16, {}, Place::kCross, 0.2}, 100)),
      Biased(9, Up({48, 0, 100}, Cross({3, 60, 1, 1, 9}, 100))),
      Biased(40, Full({1, 150, 1, 1, 9, {48, 1, 47, 30}, Place::kApart, 0.3})),
      Biased(32, {1, 60, 1, 1, 256, {50, 3}}),
      Biased(3, Cross({1, 5, 2, 1, 8}, 0)),
      Biased(3, Cross({1, 0, 2, 1, 8}, 5)),
      Scaled(Biased(32, {2, 53, 6, 2, 10}), 1),
      Scaled({1, 53, 6, 2, 10}, 1),
      Scaled({1, 97, 2, 2, 64, {50, 30}, Place::kApart, 0.2}, 0.0625),
  };
  static const std::vector<Case> cuda = {
      {1, 1, 1, 1, 1},
      {2, 1, 3, 3, 5},
      {1, 2, 1, 1, 64},
      {2, 37, 2, 2, 21},
      {1, 130, 1, 1, 16},
      {1, 33, 4, 2, 24, {}, Place::kApart},
      {2, 130, 1, 1, 9, {64, 1, 47, 30}},
      {1, 49, 2, 1, 20, {1}},
      {1, 130, 1, 1, 8, {120, 3}},
      {1, 53, 4, 2, 10, {}, Place::kApart, 0.5},
      {1, 130, 2, 1, 7, {63, 2, 30}, Place::kPacked, 0.3},
      {1, 66, 14, 2, 64, {45, 30}, Place::kPacked, 0.1},  // Qwen2's heads.
      {1, 33, 1, 1, 128},
      {1, 70, 2, 1, 80, {40, 10}, Place::kApart, 0.2},
      {1, 17, 1, 1, 256},
      {1, 66, 2, 1, 250, {40, 20}, Place::kPacked, 0.2},
      Full({1, 1, 1, 1, 1}),
      Full({1, 66, 2, 1, 21}),
      Full({1, 130, 1, 1, 9, {64, 1, 47, 30}, Place::kApart, 0.3}),
      Cross({2, 37, 2, 1, 12, {}, Place::kCross, 0.2}, 53),
      Cross({1, 130, 1, 1, 16}, 33),
      Cross({2, 33, 1, 1, 5}, 1),
      Cross({1, 1, 2, 1, 24}, 130),
      Cross({1, 5, 2, 1, 8}, 0),
      Cross({1, 0, 2, 1, 8}, 5),
      Cross({1, 20, 1, 1, 100}, 40),
      Cross({1, 33, 1, 1, 200}, 18),
      Up({0, 33, 37}, Full({3, 37, 1, 1, 21})),
      Up({64, 0, 100}, Cross({3, 20, 1, 1, 16, {}, Place::kCross, 0.2}, 100)),
      Up({0, 66, 70}, {3, 70, 1, 1, 8}),
      Up({48}, {1, 66, 1, 1, 16, {50, 30}, Place::kApart}),
      Up({90}, Full({1, 130, 1, 1, 8, {60, 1, 40}})),
      Up({17}, {1, 33, 1, 1, 72}),
      Biased(7, {2, 37, 2, 2, 21}),
      Biased(1, Full({1, 1, 1, 1, 1})),
      Biased(150, Full({1, 97, 1, 1, 64})),
      Biased(32, Cross({1, 20, 2, 1, 16, {}, Place::kCross, 0.2}, 150)),
      Biased(9, Up({0, 60}, Cross({2, 130, 1, 1, 9}, 66))),
      Biased(40, Full({1, 70, 1, 1, 9, {47, 1, 30}, Place::kApart, 0.3})),
      Biased(3, Cross({1, 5, 2, 1, 8}, 0)),
      Biased(3, Cross({1, 0, 2, 1, 8}, 5)),
      Biased(32, {1, 40, 1, 1, 128}),
      Biased(32, {1, 40, 1, 1, 250, {30, 10}, Place::kPacked, 0.2}),
      Scaled(Biased(32, {2, 33, 4, 2, 10}), 1),
      Scaled({1, 70, 2, 1, 10}, 1),
      Scaled({1, 33, 2, 2, 64, {30, 20}, Place::kApart, 0.2}, 0.0625),
      // Its tensors begin at multiples of 16 bytes; here all end at a page.
      ByCudnn({4, 1, 1, 1, 8}),
      ByCudnn({2, 37, 6, 2, 40}),
      ByCudnn({2, 34, 4, 4, 16, {}, Place::kApart}),
      ByCudnn({1, 66, 14, 2, 64}),
      ByCudnn({1, 33, 4, 2, 20}),  // None of its shapes.
      ByCudnn({2, 37, 6, 2, 40, {}, Place::kApart}, AttentionBackend::kCudnnDeterministic),
      ByCudnn({1, 20, 2, 2, 128}, AttentionBackend::kCudnnDeterministic),
      ByCudnn(Scaled({1, 20, 2, 1, 16}, 1)),
      ByCudnn(Full({2, 37, 6, 2, 40})),
      ByCudnn(Scaled(Cross({1, 34, 4, 2, 16}, 21), 0.5)),
      ByCudnn(Cross({2, 20, 2, 2, 24}, 37), AttentionBackend::kCudnnDeterministic),
      ByCudnn(Cross({2, 5, 2, 1, 8}, 1)),
      ByCudnn(Cross({1, 5, 2, 1, 8}, 0)),  // All is.
  };
  return device == DeviceType::kCpu ? cpu : cuda;
}

constexpr uint32_t kSite = 5;

struct Tensors {
  std::vector<double> q, k, v, bias = {};
};

Tensors RandomTensors(const Case& c, Random& random) {
  Tensors t;
  t.q = random.Vector(c.Q().NumElements());
  t.k = random.Vector(c.K().NumElements());
  t.v = random.Vector(c.K().NumElements());
  t.bias = random.Vector(c.Bias().NumElements());
  return t;
}

// Straight from the definition, in float64; backward from `out` as it is saved.
struct Oracle {
  Case c;
  Tensors in;
  std::vector<double> positions, buckets, keys, out, lse;
  // Sums of the factors that a product rounds, times the other factors, all taken as positive: the
  // distance by which out and the gradients would move if each factor were off by its own size.
  std::vector<double> out_of_rounded;
  Tensors of_rounded;

  Oracle(const Case& dims, const Tensors& tensors)
      : c(dims),
        in(tensors),
        positions(c.Positions()),
        buckets(c.Buckets()),
        keys(c.Keys()),
        out(c.Q().NumElements()),
        lse(c.Lse().NumElements()),
        out_of_rounded(out.size()) {
    ForEach([&](int64_t b, int64_t h, int64_t i, const std::vector<double>& p) {
      for (int64_t j = 0; j < c.keys; ++j) {
        if (p[j] == 0) continue;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          const double term = Drop(b, h, i, j) * p[j] * in.v[K(b, j, h) + d];
          out[Q(b, i, h) + d] += term;
          out_of_rounded[Q(b, i, h) + d] += std::abs(term);
        }
      }
    });
  }

  int64_t Q(int64_t b, int64_t i, int64_t h) const {
    return ((b * c.seq + i) * c.heads + h) * c.head_dim;
  }
  // The begin of key i in the head that query head h attends to.
  int64_t K(int64_t b, int64_t i, int64_t h) const {
    return ((b * c.keys + i) * c.kv_heads + h / (c.heads / c.kv_heads)) * c.head_dim;
  }
  int64_t BiasAt(int64_t h, int64_t i, int64_t j) const {
    return h * c.buckets + static_cast<int64_t>(buckets[j - i + c.seq - 1]);
  }
  bool Sees(int64_t b, int64_t i, int64_t j) const {
    if (c.causal() && j > i) return false;
    if (!c.lengths.empty() && j >= c.lengths[b]) return false;
    if (c.documents.empty()) return true;
    const auto start = [&](int64_t at) {
      return at - static_cast<int64_t>(positions[b * c.seq + at]);
    };
    return start(i) == start(j);
  }
  // The factor of a probability.
  double Drop(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (c.rate == 0) return 1;
    const auto word = [](double value) {
      return static_cast<uint32_t>(static_cast<int32_t>(value));
    };
    const PhiloxCounter words = Philox({static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i),
                                        kSite, 1 + static_cast<uint32_t>(h)},
                                       {word(keys[2 * b]), word(keys[2 * b + 1])});
    return words[j % 4] >= c.rate * 0x1p32 ? 1 / (1 - c.rate) : 0;
  }
  double DotOf(const double* x, const double* y) const {
    double sum = 0;
    for (int64_t d = 0; d < c.head_dim; ++d) sum += x[d] * y[d];
    return sum;
  }

  // Calls body with the probabilities of each query, 0 for keys that it does not see; sets lse.
  template <typename Body>
  void ForEach(const Body& body) {
    std::vector<double> p(c.keys);
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t i = 0; i < c.seq; ++i) {
          double top = -HUGE_VAL, sum = 0;
          for (int64_t j = 0; j < c.keys; ++j) {
            p[j] = -HUGE_VAL;
            if (!Sees(b, i, j)) continue;
            p[j] = c.Scale() * DotOf(&in.q[Q(b, i, h)], &in.k[K(b, j, h)]);
            if (c.buckets > 0) p[j] += in.bias[BiasAt(h, i, j)];
            top = std::max(top, p[j]);
          }
          double log_sum = 0;
          if (top > -HUGE_VAL) {
            for (int64_t j = 0; j < c.keys; ++j) sum += std::exp(p[j] - top);
            log_sum = top + std::log(sum);
          }
          for (int64_t j = 0; j < c.keys; ++j) p[j] = std::exp(p[j] - log_sum);
          lse[(b * c.heads + h) * c.seq + i] = log_sum;
          body(b, h, i, p);
        }
      }
    }
  }

  Tensors Backward(const std::vector<double>& dout) {
    Tensors g;
    for (Tensors* t : {&g, &of_rounded}) {
      t->q.assign(in.q.size(), 0);
      t->k.assign(in.k.size(), 0);
      t->v.assign(in.v.size(), 0);
      t->bias.assign(in.bias.size(), 0);
    }
    const double scale = c.Scale();
    ForEach([&](int64_t b, int64_t h, int64_t i, const std::vector<double>& p) {
      const double* dy = dout.data() + Q(b, i, h);
      const double dot = DotOf(dy, out.data() + Q(b, i, h));
      for (int64_t j = 0; j < c.keys; ++j) {
        if (p[j] == 0) continue;
        const double m = Drop(b, h, i, j);
        const double of_score = p[j] * (m * DotOf(dy, &in.v[K(b, j, h)]) - dot);
        const double ds = scale * of_score;
        if (c.buckets > 0) g.bias[BiasAt(h, i, j)] += of_score;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          const auto add = [&](std::vector<double> Tensors::*part, int64_t at, double term) {
            (g.*part)[at + d] += term;
            (of_rounded.*part)[at + d] += std::abs(term);
          };
          add(&Tensors::q, Q(b, i, h), ds * in.k[K(b, j, h) + d]);
          add(&Tensors::k, K(b, j, h), ds * in.q[Q(b, i, h) + d]);
          add(&Tensors::v, K(b, j, h), m * p[j] * dy[d]);
        }
      }
    });
    return g;
  }
};

std::string Name(const Case& c) {
  return c.Q().ToString() + " and " + std::to_string(c.kv_heads) + ", " +
         std::to_string(c.documents.size()) + " documents, dropout " + std::to_string(c.rate) +
         ", backend " + std::to_string(static_cast<int>(c.backend)) +
         (c.causal() ? "" : ", " + std::to_string(c.keys) + " keys") +
         (c.lengths.empty() ? "" : ", lengths") + ", " + std::to_string(c.buckets) + " buckets";
}

// q, k and v on the device, wherever the case puts them.
struct Placed {
  Heads q, k, v;
};

class AttentionTest : public OpTest {
 protected:
  // Enough for both directions.
  View WorkspaceOf(const Case& c) {
    return Workspace(
        std::max(AttentionForwardWorkspaceBytes(c.Dims(), dtype(), kernel_type(), c.backend),
                 AttentionBackwardWorkspaceBytes(c.Dims(), dtype(), kernel_type(), c.backend)));
  }
  std::vector<double> Forward(const AttentionInputs& in, const Case& c) {
    const View out = Output(c.Q()), lse = Output(c.Lse(), kF32), workspace = WorkspaceOf(c);
    Run([&](Stream& stream) { AttentionForward(stream, in, out, lse, workspace); });
    lse_ = Get(lse);
    return Get(out);
  }
  std::vector<double> lse_;  // From the last Forward().

  // Whether a product's factors are rounded to the dtype.
  bool RoundsOperands() const {
    return dtype() == kBF16 || (dtype() == kF16 && kernel_type() == DeviceType::kCuda);
  }

  // To within the rounding of the result and of fp32, and, where operands are rounded, of each term
  // of the sum by half an epsilon of its own size.
  void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                  const std::vector<double>& of_rounded, double tolerance,
                  const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    const double half = RoundsOperands() ? Epsilon(dtype()) / 2 : 0;
    double worst = 0;  // Over what is allowed.
    for (size_t i = 0; i < want.size(); ++i) {
      const double allowed = tolerance * std::max(1.0, std::abs(want[i])) + half * of_rounded[i];
      const double used = std::abs(got[i] - want[i]) / allowed;
      if (!(used <= worst)) worst = used;
    }
    EXPECT_LE(worst, 1) << what;
  }

  // Heads that nobody asked for hold `other`.
  Placed Place(const Case& c, double other) {
    const auto tensor = [&](int64_t heads, std::optional<int64_t> rows = {}) {
      return Accumulated({c.batch, rows.value_or(c.seq), heads, c.head_dim}, other);
    };
    if (c.place == Place::kCross) {
      const View q = tensor(c.heads + 1), kv = tensor(2 * c.kv_heads + 1, c.keys);
      return {{q, 1, c.heads}, {kv, 0, c.kv_heads}, {kv, c.kv_heads + 1, c.kv_heads}};
    }
    if (c.place == Place::kPacked) {
      const View all = tensor(c.heads + 2 * c.kv_heads);
      return {
          {all, 0, c.heads}, {all, c.heads, c.kv_heads}, {all, c.heads + c.kv_heads, c.kv_heads}};
    }
    const View qk = tensor(c.heads + c.kv_heads + 2), v = tensor(c.kv_heads + 1);
    return {{qk, c.kv_heads + 1, c.heads}, {qk, 0, c.kv_heads}, {v, 1, c.kv_heads}};
  }
  std::vector<double> GetHeads(const Heads& heads) const {
    std::vector<double> out;
    const std::vector<double> all = Get(heads.tensor);
    const int64_t dim = heads.tensor.shape[3], stride = heads.stride();
    for (int64_t row = 0; row < heads.tensor.shape[0] * heads.tensor.shape[1]; ++row) {
      const auto begin = all.begin() + row * stride + heads.first * dim;
      out.insert(out.end(), begin, begin + heads.count * dim);
    }
    return out;
  }
  void SetHeads(const Heads& heads, const std::vector<double>& values) {
    std::vector<double> all = Get(heads.tensor);
    const int64_t dim = heads.tensor.shape[3], stride = heads.stride(), n = heads.count * dim;
    for (int64_t row = 0; row < heads.tensor.shape[0] * heads.tensor.shape[1]; ++row) {
      std::copy_n(values.begin() + row * n, n, all.begin() + row * stride + heads.first * dim);
    }
    Set(heads.tensor, all);
  }
  // The sum of all elements outside the heads.
  double Others(const Placed& p) const {
    double sum = 0;
    std::vector<const std::byte*> seen;
    for (const Heads* heads : {&p.q, &p.k, &p.v}) {
      if (std::find(seen.begin(), seen.end(), heads->tensor.data) == seen.end()) {
        for (const double v : Get(heads->tensor)) sum += v;
        seen.push_back(heads->tensor.data);
      }
      for (const double v : GetHeads(*heads)) sum -= v;
    }
    return sum;
  }
  View BiasGradient(const Case& c) { return c.buckets > 0 ? Output(c.Bias()) : View(); }
  // That a column of its gradient is the sum of, at most, and of each.
  static int64_t BiasTerms(const Case& c) { return c.batch * c.seq * c.keys + c.head_dim; }
  AttentionInputs Inputs(const Case& c, const Tensors& tensors) {
    const Placed p = Place(c, 0.5);
    SetHeads(p.q, tensors.q);
    SetHeads(p.k, tensors.k);
    SetHeads(p.v, tensors.v);
    AttentionInputs in{p.q, p.k, p.v, {}};
    if (c.causal() || !c.documents.empty()) {
      in.positions = Input({c.batch, c.seq}, c.Positions(), DType::kInt32);
    }
    in.mask = c.mask;
    if (c.buckets > 0) {
      in.bias = {Input(c.Bias(), tensors.bias),
                 Input({c.Dims().distances()}, c.Buckets(), DType::kInt32)};
    }
    if (!c.lengths.empty()) {
      in.lengths = Input({c.batch}, {c.lengths.begin(), c.lengths.end()}, DType::kInt32);
    }
    if (c.rate > 0) {
      in.dropout = {c.rate, kSite, Input({c.batch, 2}, c.Keys(), DType::kInt32)};
    }
    in.backend = c.backend;
    in.scale = c.scale;
    return in;
  }
  void ExpectGradients(const Case& c) {
    Random random(2, dtype());
    const Tensors tensors = RandomTensors(c, random);
    const auto gradient = random.Vector(c.Q().NumElements());
    Oracle oracle(c, tensors);
    oracle.out = RoundTo(dtype(), oracle.out);
    const AttentionInputs in = Inputs(c, tensors);
    const View dout = Input(c.Q(), gradient), workspace = WorkspaceOf(c);
    const View out = Input(c.Q(), oracle.out), lse = Input(c.Lse(), oracle.lse, kF32);
    const Placed d = Place(c, 3);
    const View dbias = BiasGradient(c);
    const double others = Others(d);
    Run([&](Stream& stream) {
      AttentionBackward(stream, in, out, lse, dout, {d.q, d.k, d.v, dbias}, workspace);
    });
    const Tensors want = oracle.Backward(gradient);
    const double tolerance = Tolerance(dtype(), 2 * c.Terms());
    Tensors& rounded = oracle.of_rounded;
    if (BackwardTakenByCudnn(c.backend, c.Dims(), dtype()) && c.Dims().group() > 1) {
      // It rounds each head's dk and dv before it adds up the group's.
      for (auto* heads : {&rounded.k, &rounded.v}) {
        for (double& sum : *heads) sum *= 2;
      }
    }
    ExpectNear(GetHeads(d.q), want.q, rounded.q, tolerance, "dq " + Name(c));
    ExpectNear(GetHeads(d.k), want.k, rounded.k, tolerance, "dk " + Name(c));
    ExpectNear(GetHeads(d.v), want.v, rounded.v, tolerance, "dv " + Name(c));
    if (c.buckets > 0) {
      EXPECT_TRUE(AllNear(Get(dbias), want.bias, Tolerance(dtype(), BiasTerms(c)))) << Name(c);
    }
    EXPECT_NEAR(Others(d), others, 1e-6) << Name(c);
    Clear();
  }
};
FSDP_INSTANTIATE_OP_TEST(AttentionTest, kF32, kBF16, kF16);

TEST_P(AttentionTest, ForwardMatchesOracle) {
  for (const Case& c : Cases(kernel_type())) {
    Random random(1, dtype());
    const Tensors tensors = RandomTensors(c, random);
    const Oracle want(c, tensors);
    const auto out = Forward(Inputs(c, tensors), c);
    const int64_t terms = std::max(c.seq, c.keys) + c.head_dim;
    ExpectNear(out, want.out, want.out_of_rounded, Tolerance(dtype(), terms), Name(c));
    EXPECT_TRUE(AllNear(lse_, want.lse, Tolerance(kF32, terms))) << Name(c);
    Clear();
  }
}

TEST_P(AttentionTest, GradientMatchesOracle) {
  for (const Case& c : Cases(kernel_type())) ExpectGradients(c);
}

// Shapes that differ in strides alone have plans of their own.
TEST_P(AttentionTest, TwoShapesOnOneStream) {
  Case packed{2, 33, 4, 2, 16}, apart = packed;
  packed.backend = apart.backend = AttentionBackend::kCudnn;
  apart.place = Place::kApart;
  Random random(14, dtype());
  const Tensors tensors = RandomTensors(packed, random);
  const Oracle want(packed, tensors);
  const AttentionInputs first = Inputs(packed, tensors), second = Inputs(apart, tensors);
  const View outs[] = {Output(packed.Q()), Output(packed.Q()), Output(packed.Q())};
  const View lse = Output(packed.Lse(), kF32), workspace = WorkspaceOf(packed);
  Run([&](Stream& stream) {
    AttentionForward(stream, first, outs[0], lse, workspace);
    AttentionForward(stream, second, outs[1], lse, workspace);
    AttentionForward(stream, first, outs[2], lse, workspace);
  });
  for (const View& out : outs) {
    ExpectNear(Get(out), want.out, want.out_of_rounded,
               Tolerance(dtype(), packed.seq + packed.head_dim), Name(packed));
  }
}

// A warp of CUDA looks at 32 steps of 16 queries at once for those that see a tile of keys.
class AttentionLongTest : public AttentionTest {};
std::vector<OpTestCase> LongCases() {
  std::vector<OpTestCase> cases = OpTestCases({kF32});
  cases.pop_back();  // Where tensors lie others have tried.
  return cases;
}
INSTANTIATE_TEST_SUITE_P(EveryDevice, AttentionLongTest, ::testing::ValuesIn(LongCases()),
                         ::testing::PrintToStringParamName());

TEST_P(AttentionLongTest, GradientMatchesOracle) { ExpectGradients({1, 530, 1, 1, 129}); }

// While the maximum stays, sums are multiplied by exactly 1 from tile to tile. A kernel whose
// factor is off by a rounding of the maximum is off by that once per tile.
TEST_P(AttentionLongTest, EqualScoresWeighTheSame) {
  const Case c{1, 256, 1, 1, 1};
  std::vector<double> v(c.seq), want;
  std::fill_n(v.begin(), 32, 1.0);
  for (int64_t i = 0; i < c.seq; ++i) want.push_back(i < 32 ? 1 : 32 / (i + 1.0));
  const std::vector<double> q(c.seq, 45.0), k(c.seq, 1.0);  // 45 log2(e): nearly half an ulp off.
  const std::vector<double> got = Forward(Inputs(c, {q, k, v}), c);
  for (int64_t i = 0; i < c.seq; ++i) ASSERT_NEAR(got[i] / want[i], 1, 2e-6) << i;
}

// Cases for the CPU's kernels alone: none where others are under test.
std::vector<OpTestCase> CpuCases(DType dtype) {
  std::vector<OpTestCase> cases = OpTestCases({dtype});
  std::erase_if(cases, [](const OpTestCase& c) { return c.device != DeviceType::kCpu; });
  return cases;
}
#define FSDP_INSTANTIATE_ON_CPU(suite, dtype)                                \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                      \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, ::testing::ValuesIn(CpuCases(dtype)), \
                           ::testing::PrintToStringParamName())

// Dtypes that are converted to floats.
class AttentionConvertedTest : public AttentionTest {};
FSDP_INSTANTIATE_ON_CPU(AttentionConvertedTest, kF16);

// Groups add up to dk and dv in fp32, too.
TEST_P(AttentionConvertedTest, IsThatOfFp32RoundedOnce) {
  const Case c{2, 100, 6, 2, 16, {70, 30}, Place::kApart, 0.2};
  Random random(9, dtype());
  const Tensors tensors = RandomTensors(c, random);
  const auto gradient = random.Vector(c.Q().NumElements());
  const auto saved = RoundTo(dtype(), Oracle(c, tensors).out);
  const auto tensor = [&](const Shape& shape, const std::vector<double>& values, DType dtype) {
    return Heads(Input(shape, values, dtype), 0, shape[2]);
  };
  const auto run = [&](DType dtype) {
    AttentionInputs in{tensor(c.Q(), tensors.q, dtype), tensor(c.K(), tensors.k, dtype),
                       tensor(c.K(), tensors.v, dtype),
                       Input({c.batch, c.seq}, c.Positions(), DType::kInt32)};
    in.dropout = {c.rate, kSite, Input({c.batch, 2}, c.Keys(), DType::kInt32)};
    const View out = Output(c.Q(), dtype), lse = Output(c.Lse(), kF32), workspace = Workspace(0);
    const View read = Input(c.Q(), saved, dtype), dout = Input(c.Q(), gradient, dtype);
    const View dq = Output(c.Q(), dtype), dk = Output(c.K(), dtype), dv = Output(c.K(), dtype);
    const auto whole = [](const View& view) { return Heads(view, 0, view.shape[2]); };
    Run([&](Stream& s) {
      AttentionForward(s, in, out, lse, workspace);
      AttentionBackward(s, in, read, lse, dout, {whole(dq), whole(dk), whole(dv)}, workspace);
    });
    return std::vector{Get(out), Get(lse), Get(dq), Get(dk), Get(dv)};
  };
  const auto got = run(dtype()), want = run(kF32);
  for (const size_t i : {0, 2, 3, 4}) EXPECT_EQ(got[i], RoundTo(dtype(), want[i])) << i;
  EXPECT_EQ(got[1], want[1]) << "lse";
}

// Factors of a product of two bf16 or fp16 are rounded. A third is 171 / 512 in bf16 and 1365 /
// 4096 in fp16: three of them are 1 + 2^-9 and 1 - 2^-12.
class AttentionHalfTest : public AttentionTest {
 protected:
  // For one row and one head, with q = 0, out = 0 and so all p[i] = 1 / (i + 1).
  std::vector<std::vector<double>> Gradients(const std::vector<double>& k,
                                             const std::vector<double>& v,
                                             const std::vector<double>& dout) {
    const auto seq = static_cast<int64_t>(k.size());
    const Case c{1, seq, 1, 1, 1};
    const AttentionInputs in = Inputs(c, {std::vector<double>(k.size()), k, v});
    std::vector<double> logs;
    for (int64_t i = 0; i < seq; ++i) logs.push_back(std::log(i + 1));
    const View out = Input(c.Q(), std::vector<double>(k.size())), lse = Input(c.Lse(), logs, kF32);
    const View dy = Input(c.Q(), dout), workspace = WorkspaceOf(c);
    const Placed d = Place(c, 0);
    Run([&](Stream& stream) {
      AttentionBackward(stream, in, out, lse, dy, {d.q, d.k, d.v}, workspace);
    });
    return {GetHeads(d.q), GetHeads(d.k), GetHeads(d.v)};
  }
};
FSDP_INSTANTIATE_OP_TEST(AttentionHalfTest, kBF16, kF16);

// The definition of a product of two bf16. Tensor cores have an order of their own.
class AttentionBf16Test : public AttentionTest {};
FSDP_INSTANTIATE_ON_CPU(AttentionBf16Test, kBF16);

// Both: gemm.h.
float SumOfPairs(const std::vector<float>& x, const std::vector<float>& y) {
  const auto pair = [](const std::vector<float>& of, size_t d) {
    const auto bits = [&](size_t at) {
      return at < of.size() ? std::bit_cast<uint32_t>(of[at]) : 0;
    };
    return bits(d) >> 16 | bits(d + 1);
  };
  float sum = 0;
  for (size_t d = 0; d < x.size(); d += 2) sum = AddPair(sum, pair(x, d), pair(y, d));
  return sum;
}

float SumOnTiles(const std::vector<float>& x, const std::vector<float>& y) {
  float sum = 0;
  for (size_t first = 0; first < x.size(); first += 32) {
    float chains[2] = {};
    for (size_t d = first; d < std::min(first + 32, x.size()); ++d) {
      chains[d % 2] = std::fma(x[d], y[d], chains[d % 2]);
    }
    sum += chains[0] + chains[1];
  }
  return sum;
}

TEST_P(AttentionBf16Test, ScoresAreSumsOfPairs) {
  for (const int64_t dim : {1, 2, 37, 64, 255}) {
    const Case c{1, 1, 1, 1, dim};
    Random random(11, dtype());
    Tensors t = RandomTensors(c, random);
    // Sizes far apart, or few additions would round.
    for (double& q : t.q) q = std::ldexp(q, static_cast<int>(random.Integer(-12, 12)));
    Forward(Inputs(c, t), c);
    const auto floats = [](const std::vector<double>& x) {
      return std::vector<float>(x.begin(), x.end());
    };
    const std::vector<float> q = floats(t.q), k = floats(t.k);
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    // On tiles exponentials are of 2.
    const float score = ThisIsa().tiles == TileUse::kNone
                            ? SumOfPairs(q, k) * scale
                            : 0x1.62e43p-1f * (SumOnTiles(q, k) * (scale * 0x1.715476p0f));
    // The only score of its row.
    EXPECT_EQ(lse_, std::vector<double>{score}) << dim;
    Clear();
  }
}

TEST_P(AttentionHalfTest, ForwardRoundsProbabilities) {
  const double k = RoundTo(dtype(), -std::log(3.0)), exact = std::exp(k);
  const double p = RoundTo(dtype(), exact);
  ASSERT_GT(std::abs(p - exact), Epsilon(dtype()) / 64);
  // Row 1 sees 1 and exp(k) of what the values say.
  const Case c{1, 2, 1, 1, 1};
  const double got = Forward(Inputs(c, {{0, 1}, {0, k}, {-p, 1}}), c)[1];
  if (RoundsOperands()) {
    EXPECT_EQ(got, 0);
  } else {
    EXPECT_NEAR(got, (exact - p) / (1 + exact), 1e-6);
  }
  EXPECT_NEAR(lse_[1], std::log(1 + exact), 1e-6);  // The sum of unrounded terms.
}

TEST_P(AttentionHalfTest, BackwardRoundsProbabilities) {
  const auto dv = Gradients({0, 0, 0}, {0, 0, 0}, {-1, 0, 3})[2];
  EXPECT_NEAR(dv[0], RoundsOperands() ? 3 * RoundTo(dtype(), 1.0 / 3) - 1 : 0, 1e-6);
}

TEST_P(AttentionHalfTest, BackwardRoundsGradientsOfScores) {
  // Row 2: ds is a third of each v, and dq = sum ds k.
  const auto dq = Gradients({3, -1, 0}, {1, 3, 0}, {0, 0, 1})[0];
  EXPECT_NEAR(dq[2], RoundsOperands() ? 3 * RoundTo(dtype(), 1.0 / 3) - 1 : 0, 1e-6);
}

TEST_P(AttentionTest, GradientMatchesFiniteDifferences) {
  const Case documents{2, 7, 4, 2, 3, {3, 2}};
  Case dropped = documents;
  dropped.rate = 0.3;
  for (const Case& c : {documents, dropped, Full(documents), Cross({2, 7, 4, 2, 3}, 5),
                        Up({0, 3}, Cross({2, 7, 4, 2, 3}, 5)), Up({2, 6}, documents),
                        Biased(4, dropped), Biased(4, Up({0, 3}, Cross({2, 7, 4, 2, 3}, 5)))}) {
    Random random(3, dtype());
    const Tensors tensors = RandomTensors(c, random);
    const auto gradient = random.Vector(c.Q().NumElements());
    const auto numeric = [&](std::vector<double> Tensors::*part) {
      return NumericGradient(
          [&](const auto& v) {
            Tensors moved = tensors;
            moved.*part = v;
            return Dot(gradient, Oracle(c, moved).out);
          },
          tensors.*part);
    };
    const Tensors want{numeric(&Tensors::q), numeric(&Tensors::k), numeric(&Tensors::v),
                       numeric(&Tensors::bias)};
    const Tensors own = Oracle(c, tensors).Backward(gradient);
    EXPECT_TRUE(AllNear(own.q, want.q, 1e-8)) << "the oracle's own backward";
    EXPECT_TRUE(AllNear(own.k, want.k, 1e-8));
    EXPECT_TRUE(AllNear(own.v, want.v, 1e-8));
    EXPECT_TRUE(AllNear(own.bias, want.bias, 1e-8));
    const AttentionInputs in = Inputs(c, tensors);
    const View dout = Input(c.Q(), gradient), out = Output(c.Q()), lse = Output(c.Lse(), kF32);
    const View workspace = WorkspaceOf(c);
    const Placed d = Place(c, 0);
    const View dbias = BiasGradient(c);
    Run([&](Stream& stream) {
      AttentionForward(stream, in, out, lse, workspace);
      AttentionBackward(stream, in, out, lse, dout, {d.q, d.k, d.v, dbias}, workspace);
    });
    const double tolerance = Tolerance(dtype(), 2 * c.Terms());
    EXPECT_TRUE(AllNear(GetHeads(d.q), want.q, tolerance));
    EXPECT_TRUE(AllNear(GetHeads(d.k), want.k, tolerance));
    EXPECT_TRUE(AllNear(GetHeads(d.v), want.v, tolerance));
    if (c.buckets > 0) {
      EXPECT_TRUE(AllNear(Get(dbias), want.bias, Tolerance(dtype(), BiasTerms(c))));
    }
    Clear();
  }
}

// Without a rate nobody looks at the keys, and the bits are those of no dropout; with one a share
// of about the rate falls away, and other samples, heads and sites lose others.
TEST_P(AttentionTest, DropsItsShare) {
  const Case c{2, 40, 2, 2, 1, {}, Place::kPacked, 0.25};
  Tensors tensors;
  tensors.q.assign(c.Q().NumElements(), 0);  // Every probability of row i is 1 / (i + 1).
  tensors.k.assign(c.Q().NumElements(), 0);
  tensors.v.assign(c.Q().NumElements(), 1);
  const auto forward = [&](const AttentionInputs& in) {
    const auto out = Forward(in, c);
    EXPECT_NEAR(lse_.back(), std::log(40), 1e-5);
    return out;
  };
  AttentionInputs in = Inputs(c, tensors);
  const auto dropped = forward(in);
  double kept = 0, all = 0;
  for (int64_t i = 0; i < c.seq; ++i) {
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 2; ++h) {
        kept += 0.75 * (i + 1) * dropped[(b * c.seq + i) * 2 + h];
        all += static_cast<double>(i + 1);
      }
    }
  }
  EXPECT_NEAR(kept / all, 0.75, 4 * std::sqrt(0.25 * 0.75 / all));
  for (int64_t b = 0; b < 2; ++b) {
    int differ = 0;
    for (int64_t i = 0; i < c.seq; ++i) {
      differ += dropped[(b * c.seq + i) * 2] != dropped[(b * c.seq + i) * 2 + 1];
    }
    EXPECT_GT(differ, 10) << b;
  }
  EXPECT_NE(std::vector<double>(dropped.begin(), dropped.begin() + 80),
            std::vector<double>(dropped.begin() + 80, dropped.end()));
  in.dropout.site = kSite + 1;
  EXPECT_NE(forward(in), dropped);
  in.dropout = {};
  const auto none = forward(in);
  in.dropout.site = kSite;
  EXPECT_EQ(forward(in), none);
}

// A document's rows are those it has alone: to rounding, because tiles lie elsewhere.
TEST_P(AttentionTest, DocumentsAreApart) {
  const Case c{1, 130, 2, 1, 8, {70, 60}}, first{1, 70, 2, 1, 8}, second{1, 60, 2, 1, 8};
  Random random(8, dtype());
  const Tensors tensors = RandomTensors(c, random);
  const auto part = [&](const std::vector<double>& all, const Case& of, int64_t begin) {
    const int64_t width = static_cast<int64_t>(all.size()) / c.seq;
    return std::vector<double>(all.begin() + begin * width, all.begin() + (begin + of.seq) * width);
  };
  const auto forward = [&](const Case& of, const Tensors& t) { return Forward(Inputs(of, t), of); };
  const auto together = forward(c, tensors);
  for (const auto& [of, begin] : {std::pair(first, 0), std::pair(second, 70)}) {
    const auto alone = forward(
        of, {part(tensors.q, of, begin), part(tensors.k, of, begin), part(tensors.v, of, begin)});
    EXPECT_TRUE(AllNear(part(together, of, begin), alone, Tolerance(dtype(), c.seq)));
  }
}

// Rows that begin at multiples of 16 bytes may be read and written in another way, to the same
// bits.
TEST_P(AttentionTest, BitsDoNotDependOnAlignment) {
  const Case c{1, 70, 2, 1, 16, {40, 30}, Place::kPacked, 0.1};
  Random random(12, dtype());
  const Shape packed{c.batch, c.seq, c.heads + 2 * c.kv_heads, c.head_dim};
  const auto qkv = random.Vector(packed.NumElements());
  const auto gradient = random.Vector(c.Q().NumElements());
  // Tensors end at a page: these begin there less a multiple of 16 bytes, and `off` elements.
  const auto run = [&](int64_t off) {
    const auto output = [&](const Shape& shape) {
      return Output({shape.NumElements() + off}).Slice(0, shape.NumElements()).Reshape(shape);
    };
    const View in = output(packed), dout = output(c.Q()), out = output(c.Q());
    const View grad = output(packed), lse = Output(c.Lse(), kF32), workspace = WorkspaceOf(c);
    Set(in, qkv);
    Set(dout, gradient);
    const auto heads = [&](const View& v) {
      return AttentionGradients{{v, 0, c.heads}, {v, c.heads, 1}, {v, c.heads + 1, 1}};
    };
    const AttentionGradients of = heads(in);
    const AttentionInputs inputs{of.q,
                                 of.k,
                                 of.v,
                                 Input({c.batch, c.seq}, c.Positions(), DType::kInt32),
                                 {c.rate, kSite, Input({c.batch, 2}, c.Keys(), DType::kInt32)}};
    Run([&](Stream& stream) {
      AttentionForward(stream, inputs, out, lse, workspace);
      AttentionBackward(stream, inputs, out, lse, dout, heads(grad), workspace);
    });
    return std::vector{Get(out), Get(lse), Get(grad)};
  };
  EXPECT_EQ(run(0), run(1));
}

// Scores in the hundreds: exp overflows without the running maximum, and the maximum moves from
// tile to tile.
TEST_P(AttentionTest, LargeScores) {
  for (const std::vector<int64_t>& documents : {std::vector<int64_t>{}, {50, 70}}) {
    const Case c{1, 120, 1, 1, 16, documents};
    Random random(4, dtype());
    Tensors tensors = RandomTensors(c, random);
    for (double& q : tensors.q) q *= 64;
    for (int64_t i = 0; i < c.seq * 16; ++i) tensors.k[i] *= 1 + i / 256;  // k grows.
    tensors.k = RoundTo(dtype(), tensors.k);
    const Oracle want(c, tensors);
    double largest = 1;
    for (const double l : want.lse) largest = std::max(largest, std::abs(l));
    ASSERT_GT(largest, 100);
    const auto out = Forward(Inputs(c, tensors), c);
    // exp makes a relative error of the absolute error of a score.
    EXPECT_TRUE(AllNear(out, want.out, Tolerance(dtype(), c.Terms(), largest)));
    EXPECT_TRUE(AllNear(lse_, want.lse, Tolerance(kF32, c.Terms())));
    Clear();
  }
}

TEST_P(AttentionTest, PositionsDoNotSeeTheFuture) {
  const Case c{1, 100, 2, 2, 8};
  Random random(5, dtype());
  const Tensors tensors = RandomTensors(c, random);
  const int64_t width = c.heads * c.head_dim;
  const auto forward = [&](const Tensors& t) { return Forward(Inputs(c, t), c); };
  const auto before = forward(tensors);
  for (const int64_t last : {0, 5, 47, 48, 98}) {
    Tensors changed = tensors;
    for (auto* part : {&changed.q, &changed.k, &changed.v}) {
      for (size_t i = (last + 1) * width; i < part->size(); ++i) {
        (*part)[i] = -3 * (*part)[i] + 1;
      }
    }
    const auto after = forward(changed);
    const int64_t kept = (last + 1) * width;
    EXPECT_TRUE(std::equal(after.begin(), after.begin() + kept, before.begin())) << last;
    EXPECT_NE(after[kept], before[kept]);
  }
}

TEST_P(AttentionTest, NaNShows) {
  const Case c{1, 60, 1, 1, 8};
  for (auto part : {&Tensors::q, &Tensors::k, &Tensors::v}) {
    Random random(6, dtype());
    Tensors tensors = RandomTensors(c, random);
    (tensors.*part)[50 * c.head_dim] = std::nan("");
    EXPECT_TRUE(std::isnan(Forward(Inputs(c, tensors), c)[50 * c.head_dim]));
    Clear();
  }
}

TEST_P(AttentionTest, NothingToAttendTo) {
  for (const Case& c : {Case{0, 4, 1, 1, 8}, Case{2, 0, 1, 1, 8}, Case{2, 3, 0, 0, 8}}) {
    const AttentionInputs in = Inputs(c, {});
    const View out = Output(c.Q()), lse = Output(c.Lse(), kF32), workspace = WorkspaceOf(c);
    const Placed d = Place(c, 0);
    Run([&](Stream& stream) {
      AttentionForward(stream, in, out, lse, workspace);
      AttentionBackward(stream, in, out, lse, out, {d.q, d.k, d.v}, workspace);
    });
  }
}

// Nobody looks at keys from a length on, nor at their values; a row without keys is zero in all
// that it gives.
TEST_P(AttentionTest, LengthsHideWhatIsBehind) {
  for (Case c :
       {Up({0, 70, 19}, Cross({3, 20, 2, 1, 16}, 70)), Up({0, 70, 19}, {3, 70, 2, 1, 16})}) {
    Random random(15, dtype());
    const Tensors tensors = RandomTensors(c, random);
    Tensors hidden = tensors;
    const int64_t row = c.kv_heads * c.head_dim;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t i = c.lengths[b] * row; i < c.keys * row; ++i) {
        for (auto* part : {&hidden.k, &hidden.v}) (*part)[b * c.keys * row + i] = std::nan("");
      }
    }
    const auto gradient = random.Vector(c.Q().NumElements());
    const auto run = [&](const Tensors& t) {
      const AttentionInputs in = Inputs(c, t);
      const View dout = Input(c.Q(), gradient), out = Output(c.Q()), lse = Output(c.Lse(), kF32);
      const View workspace = WorkspaceOf(c);
      const Placed d = Place(c, 3);
      Run([&](Stream& stream) {
        AttentionForward(stream, in, out, lse, workspace);
        AttentionBackward(stream, in, out, lse, dout, {d.q, d.k, d.v}, workspace);
      });
      return std::vector{Get(out), Get(lse), GetHeads(d.q), GetHeads(d.k), GetHeads(d.v)};
    };
    const auto got = run(hidden);
    EXPECT_EQ(got, run(tensors));
    for (const auto& part : got) {
      const auto end = part.begin() + static_cast<int64_t>(part.size()) / c.batch;
      EXPECT_EQ(std::count(part.begin(), end, 0.0), end - part.begin());
    }
    Clear();
  }
}

// A gradient that is not a number is that of the keys that its query sees.
TEST_P(AttentionTest, HiddenKeysHaveNoGradient) {
  const Case c = Up({0, 70, 19}, Cross({3, 20, 2, 1, 16}, 70));
  Random random(16, dtype());
  Tensors tensors = RandomTensors(c, random);
  std::ranges::fill(tensors.q, std::nan(""));
  const AttentionInputs in = Inputs(c, tensors);
  const View dout = Input(c.Q(), std::vector<double>(c.Q().NumElements(), std::nan("")));
  const View out = Output(c.Q()), lse = Output(c.Lse(), kF32), workspace = WorkspaceOf(c);
  const Placed d = Place(c, 3);
  Run([&](Stream& stream) {
    AttentionForward(stream, in, out, lse, workspace);
    AttentionBackward(stream, in, out, lse, dout, {d.q, d.k, d.v}, workspace);
  });
  const int64_t row = c.kv_heads * c.head_dim;
  for (const auto& gradient : {GetHeads(d.k), GetHeads(d.v)}) {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t i = 0; i < c.keys * row; ++i) {
        const double value = gradient[b * c.keys * row + i];
        ASSERT_EQ(std::isnan(value), i < c.lengths[b] * row) << b << " " << i / row;
        ASSERT_TRUE(std::isnan(value) || value == 0) << b << " " << i / row;
      }
    }
  }
}

// By head and distance, never by query and key.
TEST_P(AttentionTest, WorkspaceOfABiasIsLinear) {
  const AttentionDims dims = Biased(3, Cross({2, 1000, 4, 2, 64}, 500)).Dims();
  const int64_t distances = 4 * 4 * 1499;
  const bool cpu = kernel_type() == DeviceType::kCpu;
  EXPECT_EQ(AttentionForwardWorkspaceBytes(dims, dtype(), kernel_type()), cpu ? distances : 0);
  EXPECT_EQ(AttentionBackwardWorkspaceBytes(dims, dtype(), kernel_type()),
            cpu ? 3 * distances : 4 * 2 * 4 * 1000 + 2 * distances);
}

// FLOPs and bytes follow from mask and shapes; documents do not count.
TEST_P(AttentionTest, CostsWhatTheMaskLeaves) {
  struct Want {
    Case c;
    double pairs;
  };
  const Want wants[] = {{{2, 9, 4, 2, 8, {4}}, 8 * 45},
                        {Full({2, 9, 4, 2, 8, {4}}), 8 * 81},
                        {Cross({2, 9, 4, 2, 8}, 13), 8 * 117},
                        {Biased(3, Up({4, 5}, Cross({2, 9, 4, 2, 8}, 13))), 8 * 117}};
  for (const auto& [c, pairs] : wants) {
    const AttentionInputs in = Inputs(
        c, {std::vector<double>(c.Q().NumElements()), std::vector<double>(c.K().NumElements()),
            std::vector<double>(c.K().NumElements()), std::vector<double>(c.Bias().NumElements())});
    const View out = Output(c.Q()), lse = Output(c.Lse(), kF32), workspace = WorkspaceOf(c);
    const auto bytes = [](const Shape& shape, DType dtype) {
      return static_cast<double>(shape.NumElements() * SizeOf(dtype));
    };
    const double q = bytes(c.Q(), dtype()), k = bytes(c.K(), dtype());
    const double rows = bytes(c.Lse(), kF32), table = bytes(c.Bias(), dtype());
    const bool biased = c.buckets > 0;
    const double more = (in.HasPositions() ? 4 * 2 * 9 : 0) + (in.HasLengths() ? 4 * 2 : 0) +
                        (biased ? 4 * (9 + 13 - 1) + table : 0);
    Run([&](Stream& s) { AttentionForward(s, in, out, lse, workspace); });
    EXPECT_EQ(cost().flops, (4 * 8 + (biased ? 1 : 0)) * pairs) << Name(c);
    EXPECT_EQ(cost().bytes_read, q + 2 * k + more) << Name(c);
    EXPECT_EQ(cost().bytes_written, q + rows) << Name(c);
    const Placed d = Place(c, 0);
    const View dbias = BiasGradient(c);
    const auto backward = [&](const View& dbias) {
      Run([&](Stream& s) {
        AttentionBackward(s, in, out, lse, out, {d.q, d.k, d.v, dbias}, workspace);
      });
    };
    backward({});
    EXPECT_EQ(cost().flops, (10 * 8 + (biased ? 1 : 0)) * pairs) << Name(c);
    EXPECT_EQ(cost().bytes_read, q + 2 * k + more + 2 * q + rows) << Name(c);
    EXPECT_EQ(cost().bytes_written, q + 2 * k) << Name(c);
    EXPECT_EQ(costs()[0].gpu.launches, 3) << Name(c);
    if (biased) {
      backward(dbias);
      EXPECT_EQ(cost().flops, (10 * 8 + 2) * pairs) << Name(c);
      EXPECT_EQ(cost().bytes_written, q + 2 * k + table) << Name(c);
      EXPECT_EQ(costs()[0].gpu.launches, 5) << Name(c);
    }
    Clear();
  }
}

TEST_P(AttentionTest, RefusesWrongArguments) {
  const Case c{1, 4, 4, 2, 8};
  const View qkv = Output({1, 4, 8, 8}), out = Output(c.Q()), lse = Output(c.Lse(), kF32);
  const View positions = Output({1, 4}, DType::kInt32), workspace = WorkspaceOf(c);
  const AttentionInputs good{Heads(qkv, 0, 4), Heads(qkv, 4, 2), Heads(qkv, 6, 2), positions};
  const auto forward = [&](const AttentionInputs& in, const View& out, const View& lse) {
    return [=](Stream& s) { AttentionForward(s, in, out, lse, workspace); };
  };
  const auto with = [&](ConstHeads AttentionInputs::*part, const Heads& heads) {
    AttentionInputs in = good;
    in.*part = heads;
    return forward(in, out, lse);
  };
  ExpectRefused(with(&AttentionInputs::q, {lse, 0, 4}), "[attention_forward] q is");
  ExpectRefused(with(&AttentionInputs::k, {Output({1, 4, 2, 8}, OtherHalf()), 0, 2}),
                "k is " + std::string(fsdp::Name(OtherHalf())));
  ExpectRefused(forward(good, Output(c.Q(), OtherHalf()), lse),
                "out is " + std::string(fsdp::Name(OtherHalf())));
  ExpectRefused(with(&AttentionInputs::q, {qkv, 5, 4}), "q is heads 5 to 9");
  ExpectRefused(with(&AttentionInputs::q, {qkv, 0, 3}), "heads of k that divide those of q");
  ExpectRefused(with(&AttentionInputs::k, {qkv, 4, 1}), "the same number of heads");
  ExpectRefused(with(&AttentionInputs::v, {Output({1, 3, 2, 8}), 0, 2}), "v is $T [1, 3, 2, 8]");
  const View wide = Output({1, 4, 3, 257});
  ExpectRefused(
      forward({Heads(wide, 0, 1), Heads(wide, 1, 1), Heads(wide, 2, 1), positions}, out, lse),
      "head_dim");
  AttentionInputs wrong = good;
  wrong.positions = Output({4}, DType::kInt32);
  ExpectRefused(forward(wrong, out, lse), "positions is int32 [4]");
  ExpectRefused(forward(good, Output({1, 2, 4, 8}), lse), "out is");
  ExpectRefused(forward(good, out, Output({1, 4, 2}, kF32)), "lse is");
  ExpectRefused(forward(good, qkv.Slice(0, 128).Reshape(c.Q()), lse), "out and q overlap");

  wrong = good;
  wrong.dropout = {0.5, 0, Output({2}, DType::kInt32)};
  ExpectRefused(forward(wrong, out, lse), "dropout.keys is int32 [2]");
  wrong.dropout.keys = Output({1, 2}, DType::kInt32);
  wrong.backend = AttentionBackend::kCudnn;
  ExpectRefused(forward(wrong, out, lse), "dropout, which only our own kernels have");
  wrong.dropout.rate = 1;
  ExpectRefused(forward(wrong, out, lse), "dropout.rate is not in [0, 1)");

  wrong = good;
  wrong.mask = AttentionMask::kFull;
  wrong.backend = AttentionBackend::kCudnn;
  ExpectRefused(forward(wrong, out, lse), "documents under a full mask, which only our own");
  wrong.backend = AttentionBackend::kOwn;
  wrong.k = Heads(Output({1, 3, 2, 8}), 0, 2);
  ExpectRefused(forward(wrong, out, lse), "k is $T [1, 3, 2, 8]");  // Documents are of both.
  wrong.positions = {};
  ExpectRefused(forward(wrong, out, lse), "v is $T [1, 4, 8, 8]");
  wrong.mask = AttentionMask::kCausal;
  wrong.k = good.k;
  ExpectRefused(forward(wrong, out, lse), "positions is");

  wrong = good;
  wrong.lengths = Output({2}, DType::kInt32);
  ExpectRefused(forward(wrong, out, lse), "lengths is int32 [2]");
  wrong.lengths = Output({1}, DType::kInt32);
  wrong.backend = AttentionBackend::kCudnn;
  ExpectRefused(forward(wrong, out, lse), "lengths, which only our own kernels have");
  wrong.backend = AttentionBackend::kOwn;
  wrong.lengths = View(lse.data, DType::kInt32, {1});
  ExpectRefused(forward(wrong, out, lse), "lse and lengths overlap");

  wrong = good;
  wrong.bias = {Output({3, 5}), Output({7}, DType::kInt32)};
  ExpectRefused(forward(wrong, out, lse), "bias.table is $T [3, 5]");
  wrong.bias.table = Output({4, 5}, OtherHalf());
  ExpectRefused(forward(wrong, out, lse), "bias.table is");
  wrong.bias = {Output({4, 5}), Output({8}, DType::kInt32)};
  ExpectRefused(forward(wrong, out, lse), "bias.buckets is int32 [8]");
  wrong.bias.buckets = Output({7}, DType::kInt32);
  const AttentionInputs biased = wrong;
  wrong.backend = AttentionBackend::kCudnn;
  ExpectRefused(forward(wrong, out, lse), "a bias, which only our own kernels have");

  wrong = good;
  for (const float scale : {0.0f, -1.0f, HUGE_VALF, std::nanf("")}) {
    wrong.scale = scale;
    ExpectRefused(forward(wrong, out, lse), "scale, want a positive number");
  }

  const View dqkv = Output({1, 4, 8, 8}), dout = Output(c.Q());
  const auto backward = [&](const View& dout, const AttentionGradients& g) {
    return [=](Stream& s) { AttentionBackward(s, good, out, lse, dout, g, workspace); };
  };
  const AttentionGradients gradients{{dqkv, 0, 4}, {dqkv, 4, 2}, {dqkv, 6, 2}};
  ExpectRefused(backward(qkv, gradients), "[attention_backward] dout is");
  AttentionGradients with_bias = gradients;
  with_bias.bias = Output({4, 5});
  ExpectRefused(backward(dout, with_bias), "dbias, of no bias");
  const View enough = WorkspaceOf(Biased(5, c));
  const auto backward_biased = [&](const View& dbias, const View& workspace) {
    AttentionGradients g = gradients;
    g.bias = dbias;
    return [=](Stream& s) { AttentionBackward(s, biased, out, lse, dout, g, workspace); };
  };
  ExpectRefused(backward_biased(Output({4, 4}), enough), "dbias is $T [4, 4]");
  ExpectRefused(backward_biased(dout.Slice(0, 20).Reshape({4, 5}), enough),
                "dbias and dout overlap");
  ExpectRefused(backward_biased(with_bias.bias, workspace), "workspace has");
  ExpectRefused(backward(dout, {{qkv, 0, 4}, {dqkv, 4, 2}, {dqkv, 6, 2}}), "dq and q overlap");
  ExpectRefused(backward(dout, {{dqkv, 0, 4}, {dqkv, 3, 2}, {dqkv, 6, 2}}), "dk and dq overlap");
  ExpectRefused(backward(dout, {{dqkv, 0, 4}, {dqkv, 4, 1}, {dqkv, 6, 2}}),
                "dk has 1 heads, want 2");
  ExpectRefused(backward(dout, {{dqkv, 0, 4}, {dqkv, 4, 2}, {Output({1, 3, 2, 8}), 0, 2}}),
                "dv is");

  for (const auto bytes : {AttentionForwardWorkspaceBytes, AttentionBackwardWorkspaceBytes}) {
    const auto own = AttentionBackend::kOwn;
    EXPECT_THROW(bytes(c.Dims(), DType::kInt32, kernel_type(), own), std::invalid_argument);
    EXPECT_THROW(bytes(c.Dims(), dtype(), DeviceType::kSim, own), std::invalid_argument);
  }
  const auto inputs = [&] {
    const View positions = Output({1, 4}, DType::kInt32), keys = Output({1, 2}, DType::kInt32);
    const Heads q(Output({1, 4, 4, 8}), 0, 4), k(Output({1, 4, 2, 8}), 0, 2);
    return AttentionInputs{q, k, Heads(Output({1, 4, 2, 8}), 0, 2), positions, {0.5, 0, keys}};
  };
  ExpectDTypesRefused("attention_forward", [&](Stream& s) {
    const AttentionInputs in = inputs();
    AttentionForward(s, in, Output(c.Q()), Output(c.Lse(), kF32), workspace);
  });
  ExpectDTypesRefused("attention_backward", [&](Stream& s) {
    const AttentionInputs in = inputs();
    const View out = Output(c.Q()), lse = Output(c.Lse(), kF32), dout = Output(c.Q());
    const Heads dq(Output({1, 4, 4, 8}), 0, 4), dk(Output({1, 4, 2, 8}), 0, 2);
    const Heads dv(Output({1, 4, 2, 8}), 0, 2);
    AttentionBackward(s, in, out, lse, dout, {dq, dk, dv}, workspace);
  });
}

TEST_P(AttentionTest, BitsDoNotDependOnThreads) {
  const bool cpu = kernel_type() == DeviceType::kCpu;
  const Case causal = cpu ? Case{2, 70, 6, 3, 20, {31, 39}, Place::kPacked, 0.2}
                          : Case{1, 66, 2, 1, 20, {31, 30}, Place::kPacked, 0.2};
  for (const Case& c : {causal, Biased(9, Up({60, 0}, Cross({2, 30, 2, 1, 20}, 70)))}) {
    Random random(7, dtype());
    const AttentionInputs in = Inputs(c, RandomTensors(c, random));
    const View dout = Input(c.Q(), random.Vector(c.Q().NumElements()));
    const View out = Output(c.Q()), lse = Output(c.Lse(), kF32), workspace = WorkspaceOf(c);
    const Placed d = Place(c, 0);
    const View dbias = BiasGradient(c);
    std::vector<View> results = {out, lse, d.q.tensor, d.k.tensor};
    if (c.buckets > 0) results.push_back(dbias);
    ExpectSameBits(
        [&](Stream& stream) {
          AttentionForward(stream, in, out, lse, workspace);
          AttentionBackward(stream, in, out, lse, dout, {d.q, d.k, d.v, dbias}, workspace);
        },
        results);
    Clear();
  }
}

}  // namespace
}  // namespace fsdp
