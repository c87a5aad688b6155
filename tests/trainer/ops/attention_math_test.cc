// Against a float64 oracle, stage by stage: probabilities from q and k; weights from the
// probabilities that the op left in memory; out from its weights; gradients from both.
#include "trainer/ops/attention_math.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/ops/attention.h"

namespace fsdp {
namespace {

const LaunchedKernels launched_kernels(__FILE__, {"head_mixing_cuda"});

using Values = std::vector<double>;

constexpr uint32_t kSite = 5;
constexpr double kEps = 1e-3;  // For the norm over heads.

struct Case {
  int64_t batch, seq, heads, kv_heads, head_dim;
  double rate = 0;  // Dropout's.
  AttentionMask mask = AttentionMask::kCausal;
  int64_t keys = seq;
  std::vector<int64_t> lengths = {};  // By sample; empty: none.
  int64_t buckets = 0;                // The bias's; 0: none.
  std::optional<float> scale = {};
  bool mixes = false;

  bool causal() const { return mask == AttentionMask::kCausal; }
  double Scale() const { return scale ? *scale : 1 / std::sqrt(head_dim); }
  bool HasWeights() const { return rate > 0 || mixes; }
  AttentionDims Dims() const {
    return {batch, seq, heads, std::max<int64_t>(1, kv_heads), head_dim, keys, buckets > 0};
  }
  Shape Q() const { return {batch, seq, heads, head_dim}; }
  Shape K() const { return {batch, keys, kv_heads, head_dim}; }
  Shape Scores() const { return {batch, heads, seq, keys}; }
  Shape Bias() const { return {heads, buckets}; }
  Shape Matrix() const { return mixes ? Shape{heads, heads} : Shape{0}; }
  Shape Norm() const { return mixes ? Shape{heads} : Shape{0}; }
  int64_t Terms() const { return (std::max(seq, keys) + head_dim) * Dims().group(); }
  Values Positions() const {
    Values positions;
    for (int64_t at = 0; at < batch * seq; ++at) {
      positions.push_back(static_cast<double>(at % seq));
    }
    return positions;
  }
  Values Buckets() const {
    Values of;
    for (int64_t d = 0; buckets > 0 && d < Dims().distances(); ++d) {
      of.push_back(static_cast<double>((d * d / 3 + d) % buckets));
    }
    return of;
  }
  Values SampleKeys() const {
    Values of;
    for (int64_t b = 0; b < batch; ++b) {
      of.insert(of.end(), {7919.0 + static_cast<double>(b), -104729.0 * (b + 1)});
    }
    return of;
  }
};
Case Full(Case c) {
  c.mask = AttentionMask::kFull;
  return c;
}
Case Cross(Case c, int64_t keys) {
  c.keys = keys;
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
Case Mixed(Case c) {
  c.mixes = true;
  return c;
}
Case Scaled(Case c, float scale) {
  c.scale = scale;
  return c;
}

// Odd everything. On CUDA around tiles of 64 rows and columns, steps of 32, and four keys of a
// draw.
const std::vector<Case>& Cases(DeviceType device) {
  static const std::vector<Case> both = {
      {1, 1, 1, 1, 1},
      {2, 1, 3, 3, 5},
      {2, 37, 2, 2, 21},
      {1, 33, 4, 2, 8},
      {1, 66, 2, 1, 20},
      {1, 53, 4, 2, 10, 0.5},
      {2, 34, 2, 1, 7, 0.3},
      Full({1, 66, 2, 1, 64}),
      Full({2, 30, 1, 1, 9, 0.3}),
      Cross({2, 37, 2, 1, 12, 0.2}, 53),
      Cross({1, 70, 1, 1, 16}, 33),
      Cross({2, 33, 1, 1, 5}, 1),
      Cross({1, 1, 2, 1, 24}, 130),
      Cross({1, 5, 2, 1, 8}, 0),
      Cross({1, 0, 2, 1, 8}, 5),
      Cross({1, 20, 1, 1, 130}, 40),
      Up({0, 33, 37}, Full({3, 37, 1, 1, 21})),
      Up({64, 0, 70}, Cross({3, 20, 1, 1, 16, 0.2}, 70)),
      Up({0, 40}, {2, 40, 2, 1, 8}),
      Up({18}, Full({1, 30, 1, 1, 8})),
      Biased(7, {2, 37, 2, 2, 21}),
      Biased(150, Full({1, 70, 1, 1, 32})),
      Biased(32, Cross({1, 20, 2, 1, 16, 0.2}, 150)),
      Biased(9, Up({0, 60}, Cross({2, 70, 1, 1, 9}, 66))),
      Biased(3, Cross({1, 5, 2, 1, 8}, 0)),
      Biased(3, Cross({1, 0, 2, 1, 8}, 5)),
      Scaled(Biased(32, {2, 33, 4, 2, 10}), 1),
      Scaled({1, 33, 2, 2, 250, 0.2}, 0.0625),
      Mixed(Full({1, 1, 1, 1, 1})),
      Mixed(Full({2, 37, 3, 3, 8})),
      Mixed({1, 35, 4, 2, 5, 0.3}),
      Mixed(Biased(9, Up({40, 7}, Cross({2, 12, 5, 5, 4, 0.2}, 41)))),
      Mixed(Full({1, 5, 20, 20, 2})),
      Mixed(Cross({1, 5, 2, 1, 8}, 0)),
      Mixed(Cross({1, 0, 2, 1, 8}, 5)),
  };
  static const std::vector<Case> cpu = [] {
    std::vector<Case> all = both;
    all.insert(all.end(), {Full({1, 200, 2, 2, 64}),
                           {1, 150, 6, 2, 33, 0.1},
                           Mixed(Full({1, 20, 64, 64, 3})),
                           Mixed(Full({2, 50, 12, 12, 16, 0.1}))});
    return all;
  }();
  return device == DeviceType::kCpu ? cpu : both;
}

struct Tensors {
  Values q, k, v, table = {}, matrix = {}, weight = {}, norm_bias = {};
};

// Straight from the definition, in float64.
struct Oracle {
  Case c;
  Tensors in;
  Values buckets, sample_keys;
  double largest_score = 0;  // But for the bias.
  double largest_rstd = 1;

  Oracle(const Case& of, const Tensors& tensors)
      : c(of), in(tensors), buckets(c.Buckets()), sample_keys(c.SampleKeys()) {}

  int64_t Q(int64_t b, int64_t i, int64_t h) const {
    return ((b * c.seq + i) * c.heads + h) * c.head_dim;
  }
  int64_t K(int64_t b, int64_t j, int64_t h) const {
    return ((b * c.keys + j) * c.kv_heads + h / (c.heads / c.kv_heads)) * c.head_dim;
  }
  int64_t Score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return ((b * c.heads + h) * c.seq + i) * c.keys + j;
  }
  int64_t BiasAt(int64_t h, int64_t i, int64_t j) const {
    return h * c.buckets + static_cast<int64_t>(buckets[j - i + c.seq - 1]);
  }
  bool Sees(int64_t b, int64_t i, int64_t j) const {
    if (c.causal() && j > i) return false;
    return c.lengths.empty() || j < c.lengths[b];
  }
  double Drop(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (c.rate == 0) return 1;
    const auto word = [](double value) {
      return static_cast<uint32_t>(static_cast<int32_t>(value));
    };
    const PhiloxCounter words = Philox({static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i),
                                        kSite, 1 + static_cast<uint32_t>(h)},
                                       {word(sample_keys[2 * b]), word(sample_keys[2 * b + 1])});
    return words[j % 4] >= c.rate * 0x1p32 ? 1 / (1 - c.rate) : 0;
  }
  double DotOf(const double* x, const double* y) const {
    double sum = 0;
    for (int64_t d = 0; d < c.head_dim; ++d) sum += x[d] * y[d];
    return sum;
  }
  void ForEachQuery(const std::function<void(int64_t b, int64_t i)>& body) const {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t i = 0; i < c.seq; ++i) body(b, i);
    }
  }

  Values Probabilities() {
    Values p(c.Scores().NumElements());
    ForEachQuery([&](int64_t b, int64_t i) {
      for (int64_t h = 0; h < c.heads; ++h) {
        double top = -HUGE_VAL, sum = 0;
        double* const row = p.data() + Score(b, h, i, 0);
        for (int64_t j = 0; j < c.keys; ++j) {
          if (!Sees(b, i, j)) continue;
          row[j] = c.Scale() * DotOf(&in.q[Q(b, i, h)], &in.k[K(b, j, h)]);
          largest_score = std::max(largest_score, std::abs(row[j]));
          if (c.buckets > 0) row[j] += in.table[BiasAt(h, i, j)];
          top = std::max(top, row[j]);
        }
        for (int64_t j = 0; j < c.keys; ++j) {
          row[j] = Sees(b, i, j) ? std::exp(row[j] - top) : 0;
          sum += row[j];
        }
        for (int64_t j = 0; j < c.keys; ++j) row[j] = row[j] > 0 ? row[j] / sum : 0;
      }
    });
    return p;
  }

  // The norm over heads of one query and key.
  struct Norm {
    Values x;
    double rstd = 0;
  };
  Norm NormOf(const Values& p, int64_t b, int64_t i, int64_t j) {
    const auto heads = static_cast<double>(c.heads);
    Norm norm{Values(c.heads)};
    double mean = 0, variance = 0;
    for (int64_t g = 0; g < c.heads; ++g) {
      for (int64_t h = 0; h < c.heads; ++h) {
        norm.x[g] += in.matrix[h * c.heads + g] * Drop(b, h, i, j) * p[Score(b, h, i, j)];
      }
      mean += norm.x[g] / heads;
    }
    for (double& x : norm.x) {
      x -= mean;
      variance += x * x / heads;
    }
    norm.rstd = 1 / std::sqrt(variance + kEps);
    largest_rstd = std::max(largest_rstd, norm.rstd);
    for (double& x : norm.x) x *= norm.rstd;
    return norm;
  }
  Values Weights(const Values& p) {
    Values w(p.size());
    ForEachQuery([&](int64_t b, int64_t i) {
      for (int64_t j = 0; j < c.keys; ++j) {
        if (!Sees(b, i, j)) continue;
        const Norm norm = c.mixes ? NormOf(p, b, i, j) : Norm{};
        for (int64_t h = 0; h < c.heads; ++h) {
          const int64_t at = Score(b, h, i, j);
          w[at] = c.mixes ? in.weight[h] * norm.x[h] + in.norm_bias[h] : Drop(b, h, i, j) * p[at];
        }
      }
    });
    return w;
  }
  Values Out(const Values& w) const {
    Values out(c.Q().NumElements());
    ForEachQuery([&](int64_t b, int64_t i) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t j = 0; j < c.keys; ++j) {
          for (int64_t d = 0; Sees(b, i, j) && d < c.head_dim; ++d) {
            out[Q(b, i, h) + d] += w[Score(b, h, i, j)] * in.v[K(b, j, h) + d];
          }
        }
      }
    });
    return out;
  }

  // The gradients, and `rounded`: by how much each would move, were dw, dp and ds each off by their
  // own size.
  Tensors Backward(const Values& p, const Values& w, const Values& dout, Tensors& rounded) {
    Tensors g;
    for (Tensors* t : {&g, &rounded}) {
      t->q.assign(in.q.size(), 0);
      t->k.assign(in.k.size(), 0);
      t->v.assign(in.v.size(), 0);
      t->table.assign(in.table.size(), 0);
      t->matrix.assign(in.matrix.size(), 0);
      t->weight.assign(in.weight.size(), 0);
      t->norm_bias.assign(in.norm_bias.size(), 0);
    }
    const auto heads = static_cast<double>(c.heads);
    ForEachQuery([&](int64_t b, int64_t i) {
      // [heads, keys]
      Values dp(c.heads * c.keys), off(dp.size());
      for (int64_t j = 0; j < c.keys; ++j) {
        if (!Sees(b, i, j)) continue;
        Values dw(c.heads);
        for (int64_t h = 0; h < c.heads; ++h) {
          const double* const dy = &dout[Q(b, i, h)];
          dw[h] = DotOf(dy, &in.v[K(b, j, h)]);
          for (int64_t d = 0; d < c.head_dim; ++d) {
            g.v[K(b, j, h) + d] += w[Score(b, h, i, j)] * dy[d];
          }
          if (!c.mixes) {
            dp[h * c.keys + j] = Drop(b, h, i, j) * dw[h];
            off[h * c.keys + j] = std::abs(dp[h * c.keys + j]);
          }
        }
        if (!c.mixes) continue;
        const Norm norm = NormOf(p, b, i, j);
        double mean = 0, dot = 0, abs_mean = 0, abs_dot = 0;
        for (int64_t k = 0; k < c.heads; ++k) {
          const double of = in.weight[k] * dw[k], term = dw[k] * norm.x[k];
          mean += of / heads;
          dot += of * norm.x[k] / heads;
          abs_mean += std::abs(of) / heads;
          abs_dot += std::abs(of * norm.x[k]) / heads;
          g.weight[k] += term;
          rounded.weight[k] += std::abs(term);
          g.norm_bias[k] += dw[k];
          rounded.norm_bias[k] += std::abs(dw[k]);
        }
        for (int64_t k = 0; k < c.heads; ++k) {
          const double of = in.weight[k] * dw[k];
          const double du = norm.rstd * (of - mean - norm.x[k] * dot);
          const double du_off =
              norm.rstd * (std::abs(of) + abs_mean + std::abs(norm.x[k]) * abs_dot);
          for (int64_t h = 0; h < c.heads; ++h) {
            const double m = Drop(b, h, i, j), mp = m * p[Score(b, h, i, j)];
            const double factor = in.matrix[h * c.heads + k];
            g.matrix[h * c.heads + k] += mp * du;
            rounded.matrix[h * c.heads + k] += std::abs(mp * du_off);
            dp[h * c.keys + j] += m * factor * du;
            off[h * c.keys + j] += 2 * std::abs(m * factor * du_off);
          }
        }
      }
      for (int64_t h = 0; h < c.heads; ++h) {
        double dot = 0, dot_off = 0;
        for (int64_t j = 0; j < c.keys; ++j) {
          dot += p[Score(b, h, i, j)] * dp[h * c.keys + j];
          dot_off += p[Score(b, h, i, j)] * off[h * c.keys + j];
        }
        for (int64_t j = 0; j < c.keys; ++j) {
          if (!Sees(b, i, j)) continue;
          const double of_p = p[Score(b, h, i, j)];
          const double ds = of_p * (dp[h * c.keys + j] - dot);
          const double ds_off = of_p * (off[h * c.keys + j] + dot_off) + std::abs(ds);
          if (c.buckets > 0) {
            g.table[BiasAt(h, i, j)] += ds;
            rounded.table[BiasAt(h, i, j)] += ds_off;
          }
          for (int64_t d = 0; d < c.head_dim; ++d) {
            const double k = c.Scale() * in.k[K(b, j, h) + d];
            const double q = c.Scale() * in.q[Q(b, i, h) + d];
            g.q[Q(b, i, h) + d] += ds * k;
            rounded.q[Q(b, i, h) + d] += ds_off * std::abs(k);
            g.k[K(b, j, h) + d] += ds * q;
            rounded.k[K(b, j, h) + d] += ds_off * std::abs(q);
          }
        }
      }
    });
    return g;
  }
};

std::string Name(const Case& c) {
  return c.Q().ToString() + " and " + std::to_string(c.kv_heads) + ", " + std::to_string(c.keys) +
         (c.causal() ? " keys, causal, " : " keys, ") + "dropout " + std::to_string(c.rate) +
         (c.lengths.empty() ? ", " : ", lengths, ") + std::to_string(c.buckets) + " buckets" +
         (c.mixes ? ", mixed" : "");
}

Tensors RandomTensors(const Case& c, Random& random) {
  Tensors t;
  t.q = random.Vector(c.Q().NumElements());
  t.k = random.Vector(c.K().NumElements());
  t.v = random.Vector(c.K().NumElements());
  t.table = random.Vector(c.Bias().NumElements());
  t.matrix = random.Vector(c.Matrix().NumElements());
  t.weight = random.Vector(c.Norm().NumElements());
  t.norm_bias = random.Vector(c.Norm().NumElements());
  return t;
}

// A call, and all that it writes.
struct Placed {
  AttentionInputs in;
  HeadMixing mixing;
  View p, w, out, dout, workspace;
  Heads dq, dk, dv;
  AttentionGradients gradients;
  HeadMixingGradients mixing_gradients;
};

class AttentionMathTest : public OpTest {
 protected:
  // q, k and v in one tensor under a causal mask, as the models have them; else q apart from k and
  // v; between heads of others. `before`: what the gradients of mixing hold.
  Placed Place(const Case& c, const Tensors& t, std::optional<DType> of_parameters = {},
               double before = 1) {
    const auto tensor = [&](int64_t heads, int64_t rows) {
      return Accumulated({c.batch, rows, heads, c.head_dim}, 0.5);
    };
    const auto place = [&](Heads& q, Heads& k, Heads& v) {
      if (c.causal()) {
        const View all = tensor(c.heads + 2 * c.kv_heads, c.seq);
        q = {all, 0, c.heads};
        k = {all, c.heads, c.kv_heads};
        v = {all, c.heads + c.kv_heads, c.kv_heads};
      } else {
        const View kv = tensor(2 * c.kv_heads + 1, c.keys);
        q = {tensor(c.heads + 1, c.seq), 1, c.heads};
        k = {kv, 0, c.kv_heads};
        v = {kv, c.kv_heads + 1, c.kv_heads};
      }
    };
    Placed placed;
    Heads q, k, v;
    place(q, k, v);
    SetHeads(q, t.q);
    SetHeads(k, t.k);
    SetHeads(v, t.v);
    AttentionInputs& in = placed.in = {q, k, v, {}};
    if (c.causal()) {
      in.positions = Input({c.batch, c.seq}, c.Positions(), DType::kInt32);
    }
    in.mask = c.mask;
    in.backend = AttentionBackend::kMath;
    in.scale = c.scale;
    if (c.buckets > 0) {
      in.bias = {Input(c.Bias(), t.table),
                 Input({c.Dims().distances()}, c.Buckets(), DType::kInt32)};
    }
    if (!c.lengths.empty()) {
      in.lengths = Input({c.batch}, {c.lengths.begin(), c.lengths.end()}, DType::kInt32);
    }
    if (c.rate > 0) {
      in.dropout = {c.rate, kSite, Input({c.batch, 2}, c.SampleKeys(), DType::kInt32)};
    }
    placed.p = Output(c.Scores());
    if (c.HasWeights()) placed.w = Output(c.Scores());
    placed.out = Output(c.Q());
    place(placed.dq, placed.dk, placed.dv);
    placed.gradients = {placed.dq, placed.dk, placed.dv};
    if (c.buckets > 0) placed.gradients.bias = Output(c.Bias());
    if (c.mixes) {
      placed.mixing = {Input(c.Matrix(), t.matrix, of_parameters),
                       Input(c.Norm(), t.weight, of_parameters),
                       Input(c.Norm(), t.norm_bias, of_parameters), kEps};
      placed.mixing_gradients = {Accumulated(c.Matrix(), before, of_parameters),
                                 Accumulated(c.Norm(), before, of_parameters),
                                 Accumulated(c.Norm(), before, of_parameters)};
    }
    placed.workspace =
        Workspace(AttentionMathBackwardWorkspaceBytes(c.Dims(), dtype(), kernel_type(), c.mixes));
    return placed;
  }
  void Forward(const Placed& at) {
    Run([&](Stream& s) { AttentionMathForward(s, at.in, at.mixing, at.p, at.w, at.out); });
  }
  void Backward(const Placed& at) {
    Run([&](Stream& s) {
      AttentionMathBackward(s, at.in, at.mixing, at.p, at.w, at.dout, at.gradients,
                            at.mixing_gradients, at.workspace);
    });
  }
  Values GetHeads(const Heads& heads) const {
    Values out;
    const Values all = Get(heads.tensor);
    const int64_t dim = heads.tensor.shape[3], stride = heads.stride();
    for (int64_t row = 0; row < heads.tensor.shape[0] * heads.tensor.shape[1]; ++row) {
      const auto begin = all.begin() + row * stride + heads.first * dim;
      out.insert(out.end(), begin, begin + heads.count * dim);
    }
    return out;
  }
  void SetHeads(const Heads& heads, const Values& values) {
    Values all = Get(heads.tensor);
    const int64_t dim = heads.tensor.shape[3], stride = heads.stride(), n = heads.count * dim;
    for (int64_t row = 0; row < heads.tensor.shape[0] * heads.tensor.shape[1]; ++row) {
      std::copy_n(values.begin() + row * n, n, all.begin() + row * stride + heads.first * dim);
    }
    Set(heads.tensor, all);
  }
  // The sum of all elements outside the gradients' heads.
  double Others(const Placed& at) const {
    double sum = 0;
    std::vector<const std::byte*> seen;
    for (const Heads* heads : {&at.dq, &at.dk, &at.dv}) {
      if (std::find(seen.begin(), seen.end(), heads->tensor.data) == seen.end()) {
        for (const double v : Get(heads->tensor)) sum += v;
        seen.push_back(heads->tensor.data);
      }
      for (const double v : GetHeads(*heads)) sum -= v;
    }
    return sum;
  }
  // Within `tolerance`, for elements of order one, and `factor` for each of `more`.
  static void ExpectNear(const Values& got, const Values& want, double tolerance,
                         const Values& more, double factor, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    double worst = 0;  // Over what is allowed.
    for (size_t i = 0; i < want.size(); ++i) {
      const double allowed = tolerance * std::max(1.0, std::abs(want[i])) + factor * more[i];
      const double used = std::abs(got[i] - want[i]) / allowed;
      if (!(used <= worst)) worst = used;
    }
    EXPECT_LE(worst, 1) << what;
  }
};
FSDP_INSTANTIATE_OP_TEST(AttentionMathTest, kF32, kBF16, kF16);

TEST_P(AttentionMathTest, ForwardMatchesOracle) {
  for (const Case& c : Cases(kernel_type())) {
    Random random(1, dtype());
    const Tensors tensors = RandomTensors(c, random);
    Oracle oracle(c, tensors);
    const Placed at = Place(c, tensors);
    Forward(at);
    // A score is rounded, and so are the others of its row.
    const Values want = oracle.Probabilities(), got = Get(at.p);
    ExpectNear(got, want, Tolerance(dtype(), c.keys + c.head_dim), want,
               Epsilon(dtype()) * oracle.largest_score, "p " + Name(c));
    for (size_t i = 0; i < want.size(); ++i) ASSERT_FALSE(want[i] == 0 && got[i] != 0) << Name(c);
    Values weights = got;
    if (c.HasWeights()) {
      weights = Get(at.w);
      const Values of = oracle.Weights(got);
      const double more = c.mixes ? 2 * oracle.largest_rstd * Tolerance(kF32, 2 * c.heads) : 0;
      ExpectNear(weights, of, Tolerance(dtype(), 1) + more, of, 0, "w " + Name(c));
    }
    const double scale = c.mixes ? std::sqrt(static_cast<double>(c.heads)) : 1;
    EXPECT_TRUE(AllNear(Get(at.out), oracle.Out(weights), Tolerance(dtype(), c.keys, 2 * scale)))
        << Name(c);
    Clear();
  }
}

TEST_P(AttentionMathTest, GradientMatchesOracle) {
  for (const Case& c : Cases(kernel_type())) {
    const bool fp32 = c.rate > 0;  // The parameters of mixing, and their gradients.
    Random random(2, dtype());
    const Tensors tensors = RandomTensors(c, random);
    const Values dout = random.Vector(c.Q().NumElements());
    Oracle oracle(c, tensors);
    Placed at = Place(c, tensors, fp32 ? std::optional(kF32) : std::nullopt);
    at.dout = Input(c.Q(), dout);
    const double others = Others(at);
    Forward(at);
    Backward(at);
    Tensors rounded;
    const Values p = Get(at.p), w = c.HasWeights() ? Get(at.w) : p;
    const Tensors want = oracle.Backward(p, w, dout, rounded);
    const double half = Epsilon(dtype()) / 2;
    const double tolerance = Tolerance(dtype(), 2 * c.Terms(), c.mixes ? oracle.largest_rstd : 1);
    ExpectNear(GetHeads(at.dq), want.q, tolerance, rounded.q, half, "dq " + Name(c));
    ExpectNear(GetHeads(at.dk), want.k, tolerance, rounded.k, half, "dk " + Name(c));
    ExpectNear(GetHeads(at.dv), want.v, tolerance, rounded.v, half, "dv " + Name(c));
    const int64_t pairs = c.batch * c.seq * c.keys;
    if (c.buckets > 0) {
      ExpectNear(Get(at.gradients.bias), want.table, Tolerance(dtype(), pairs + c.head_dim),
                 rounded.table, half, "dtable " + Name(c));
    }
    const DType of = fp32 ? kF32 : dtype();
    const auto expect = [&](const std::optional<View>& got, Values sum, const Values& more,
                            const char* what) {
      if (!c.mixes) return;
      for (double& x : sum) x += 1;  // The old values.
      ExpectNear(Get(*got), sum, Tolerance(of, pairs, oracle.largest_rstd), more, half,
                 what + (" " + Name(c)));
    };
    expect(at.mixing_gradients.matrix, want.matrix, rounded.matrix, "dmatrix");
    expect(at.mixing_gradients.weight, want.weight, rounded.weight, "dweight");
    expect(at.mixing_gradients.bias, want.norm_bias, rounded.norm_bias, "dbias");
    EXPECT_NEAR(Others(at), others, 1e-6) << Name(c);
    Clear();
  }
}

// The oracle's own backward; the op is compared with it.
TEST_P(AttentionMathTest, OracleMatchesFiniteDifferences) {
  const Case causal{2, 7, 4, 2, 3};
  Case dropped = causal;
  dropped.rate = 0.3;
  for (const Case& c : {causal, dropped, Full(causal), Up({0, 3}, Cross(causal, 7)),
                        Biased(4, dropped), Mixed(Full({2, 5, 4, 2, 3})),
                        Mixed(Biased(4, Up({2, 5}, Cross({2, 4, 3, 1, 3, 0.3}, 6))))}) {
    Random random(3, dtype());
    const Tensors tensors = RandomTensors(c, random);
    const Values dout = random.Vector(c.Q().NumElements());
    Oracle oracle(c, tensors);
    Tensors rounded;
    const Values p = oracle.Probabilities();
    const Tensors got = oracle.Backward(p, oracle.Weights(p), dout, rounded);
    for (Values Tensors::*part : {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::table,
                                  &Tensors::matrix, &Tensors::weight, &Tensors::norm_bias}) {
      const Values want = NumericGradient(
          [&](const auto& v) {
            Tensors moved = tensors;
            moved.*part = v;
            Oracle at(c, moved);
            return Dot(dout, at.Out(at.Weights(at.Probabilities())));
          },
          tensors.*part);
      EXPECT_TRUE(AllNear(got.*part, want, 1e-6)) << Name(c);
    }
  }
}

// In fp32 the ops differ in the order of sums alone.
TEST_P(AttentionMathTest, IsThatOfTiles) {
  const bool fp32 = dtype() == kF32;
  for (const Case& c :
       {Case{2, 37, 4, 2, 16, 0.3}, Biased(9, Up({0, 30}, Cross({2, 20, 2, 1, 8, 0.2}, 40)))}) {
    Random random(4, dtype());
    const Tensors tensors = RandomTensors(c, random);
    Placed at = Place(c, tensors);
    const View out = Output(c.Q()), lse = Output({c.batch, c.heads, c.seq}, kF32);
    const View workspace =
        Workspace(AttentionForwardWorkspaceBytes(c.Dims(), dtype(), kernel_type()));
    AttentionInputs tiles = at.in;
    tiles.backend = AttentionBackend::kOwn;
    Forward(at);
    Run([&](Stream& s) { AttentionForward(s, tiles, out, lse, workspace); });
    const double off = fp32 ? 0 : 4 * Epsilon(dtype());
    EXPECT_TRUE(AllNear(Get(at.out), Get(out), Tolerance(dtype(), 2 * c.Terms()) + off)) << Name(c);
    Clear();
  }
}

// Nobody looks at keys from a length on, nor at their values; a row without keys is zero in all
// that it gives.
TEST_P(AttentionMathTest, LengthsHideWhatIsBehind) {
  for (const Case& c : {Up({0, 70, 19}, Cross({3, 20, 2, 1, 16}, 70)),
                        Mixed(Up({0, 70, 19}, Cross({3, 9, 2, 1, 16, 0.2}, 70)))}) {
    Random random(15, dtype());
    const Tensors tensors = RandomTensors(c, random);
    Tensors hidden = tensors;
    const int64_t row = c.kv_heads * c.head_dim;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t i = c.lengths[b] * row; i < c.keys * row; ++i) {
        for (auto* part : {&hidden.k, &hidden.v}) (*part)[b * c.keys * row + i] = std::nan("");
      }
    }
    const Values dout = random.Vector(c.Q().NumElements());
    const auto run = [&](const Tensors& t) {
      Placed at = Place(c, t);
      at.dout = Input(c.Q(), dout);
      Forward(at);
      Backward(at);
      return std::vector{Get(at.out), GetHeads(at.dq), GetHeads(at.dk), GetHeads(at.dv)};
    };
    const auto got = run(hidden);
    EXPECT_EQ(got, run(tensors));
    for (const Values& part : got) {
      const auto end = part.begin() + static_cast<int64_t>(part.size()) / c.batch;
      EXPECT_EQ(std::count(part.begin(), end, 0.0), end - part.begin());
    }
    Clear();
  }
}

TEST_P(AttentionMathTest, NaNShows) {
  const Case c{1, 40, 1, 1, 8};
  for (auto part : {&Tensors::q, &Tensors::k, &Tensors::v}) {
    Random random(6, dtype());
    Tensors tensors = RandomTensors(c, random);
    (tensors.*part)[30 * c.head_dim] = std::nan("");
    const Placed at = Place(c, tensors);
    Forward(at);
    EXPECT_TRUE(std::isnan(Get(at.out)[30 * c.head_dim]));
    Clear();
  }
}

// A loss scaler cures no infinity of a forward pass. Keys that are beyond the range share the row.
TEST_P(AttentionMathTest, ScoresBeyondTheRangeAreItsLargest) {
  const Case c{1, 3, 1, 1, 8, 0, AttentionMask::kFull, 3, {}, 0, 1.0f};
  Tensors tensors = RandomTensors(c, *std::make_unique<Random>(6, dtype()));
  const double large = dtype() == kF16 ? 128 : 1;
  tensors.q.assign(tensors.q.size(), large);
  tensors.k.assign(tensors.k.size(), 2 * large);  // 262,144.
  std::fill_n(tensors.k.begin(), c.head_dim, -large);
  const Placed at = Place(c, tensors);
  Forward(at);
  for (const double value : Get(at.out)) EXPECT_TRUE(std::isfinite(value));
  const Values p = Get(at.p);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(p[3 * i], 0, 1e-6);
    EXPECT_EQ(p[3 * i + 1], 0.5);
    EXPECT_EQ(p[3 * i + 2], 0.5);
  }
}

// A frozen parameter has no gradient, and the others have theirs.
TEST_P(AttentionMathTest, LeavesOutWhatIsFrozen) {
  const Case c = Mixed(Full({1, 9, 3, 3, 4}));
  Random random(7, dtype());
  Placed at = Place(c, RandomTensors(c, random));
  at.dout = Input(c.Q(), random.Vector(c.Q().NumElements()));
  Forward(at);
  Backward(at);
  const HeadMixingGradients all = at.mixing_gradients;
  const Values want = Get(*all.weight), of_q = GetHeads(at.dq);
  at.mixing_gradients = {.weight = Accumulated(c.Norm())};
  Backward(at);
  EXPECT_EQ(Get(*at.mixing_gradients.weight), want);
  EXPECT_EQ(GetHeads(at.dq), of_q);
  EXPECT_EQ(costs()[1].gpu.launches, 2);
}

TEST_P(AttentionMathTest, NothingToAttendTo) {
  for (const Case& c : {Case{0, 4, 1, 1, 8}, Case{2, 0, 1, 1, 8}, Case{2, 3, 0, 0, 8}}) {
    Placed at = Place(c, {});
    at.dout = at.out;
    Forward(at);
    Backward(at);
  }
}

// All pairs count, whatever a mask hides. Each kernel states the bytes that it reads and writes.
TEST_P(AttentionMathTest, CostsAllPairs) {
  const Case causal{2, 9, 4, 2, 8}, full = Cross({2, 9, 4, 2, 8, 0.1}, 13);
  for (const Case& c : {causal, full, Mixed(Biased(3, Up({4, 5}, full)))}) {
    const double pairs = 1.0 * c.batch * c.heads * c.seq * c.keys;
    const double scores = pairs * static_cast<double>(SizeOf(dtype()));
    const auto bytes = [&](const Shape& shape) {
      return static_cast<double>(shape.NumElements() * SizeOf(dtype()));
    };
    const double q = bytes(c.Q()), k = bytes(c.K()), table = c.buckets > 0 ? bytes(c.Bias()) : 0;
    const double norm = c.mixes ? bytes(c.Matrix()) + 2 * bytes(c.Norm()) : 0;
    const double softmax = 5 + (c.buckets > 0 ? 1 : 0), draw = c.rate > 0 ? 15 : 0;
    Placed at = Place(
        c, {Values(c.Q().NumElements()), Values(c.K().NumElements()), Values(c.K().NumElements()),
            Values(c.Bias().NumElements()), Values(c.Matrix().NumElements()),
            Values(c.Norm().NumElements()), Values(c.Norm().NumElements())});
    at.dout = at.out;
    const double more =
        (at.in.HasPositions() ? 4 * 2 * 9 : 0) + (at.in.HasLengths() ? 4 * 2 : 0) +
        (c.rate > 0 ? 2 * 2 * 4 : 0) +
        (c.buckets > 0 ? table + 4.0 * static_cast<double>(c.Dims().distances()) : 0);
    Forward(at);
    const double of_mixing = c.mixes ? 2 * 4 + 8 : 0, apart = c.HasWeights() ? 1 : 0;
    EXPECT_EQ(cost().flops, (2 * 2 * 8 + softmax + draw + of_mixing) * pairs) << Name(c);
    EXPECT_EQ(cost().bytes_read, q + 2 * k + more + norm + (2 + (c.mixes ? 1 : 0)) * scores)
        << Name(c);
    EXPECT_EQ(cost().bytes_written, q + (2 + apart) * scores) << Name(c);
    EXPECT_EQ(LaunchesOf(costs()).kernels, c.mixes ? 4 : 3) << Name(c);
    double model = 0;
    for (const KernelCost& kernel : costs()) model += kernel.model_flops;
    const double half = c.causal() ? 0.5 : 1;
    EXPECT_EQ(model, (4 * 8 * half + (c.mixes ? 8 : 0)) * pairs) << Name(c);

    Backward(at);
    const double backward = (4 * 2 * 8 + 5 + (c.mixes ? 2 * draw + 6 * 4 + 20 : draw)) * pairs;
    EXPECT_EQ(cost().flops, backward + (c.buckets > 0 ? pairs : 0)) << Name(c);
    const double buckets = c.buckets > 0 ? 4.0 * static_cast<double>(c.Dims().distances()) : 0;
    EXPECT_EQ(cost().bytes_read, 3 * q + 2 * k + more + 5 * scores +
                                     (c.mixes ? 2 * scores + 2 * norm : 0) +
                                     (c.buckets > 0 ? scores + buckets : 0))
        << Name(c);
    EXPECT_EQ(cost().bytes_written, q + 2 * k + 2 * scores + (c.mixes ? scores + norm : 0) + table)
        << Name(c);
    EXPECT_EQ(LaunchesOf(costs()).kernels, 5 + (c.mixes ? 4 : 0) + (c.buckets > 0 ? 2 : 0))
        << Name(c);
    model = 0;
    for (const KernelCost& kernel : costs()) model += kernel.model_flops;
    EXPECT_EQ(model, 2 * (4 * 8 * half + (c.mixes ? 8 : 0)) * pairs) << Name(c);
    Clear();
  }
}

TEST_P(AttentionMathTest, RefusesWrongArguments) {
  const Case c = Mixed(Full({1, 4, 4, 2, 8}));
  Random random(8, dtype());
  Placed good = Place(c, RandomTensors(c, random));
  good.dout = Output(c.Q());
  const auto forward = [&](const auto& change) {
    Placed at = good;
    change(at);
    return [=](Stream& s) { AttentionMathForward(s, at.in, at.mixing, at.p, at.w, at.out); };
  };
  const auto backward = [&](const auto& change) {
    Placed at = good;
    change(at);
    return [=](Stream& s) {
      AttentionMathBackward(s, at.in, at.mixing, at.p, at.w, at.dout, at.gradients,
                            at.mixing_gradients, at.workspace);
    };
  };
  ExpectRefused(forward([](Placed& at) { at.in.backend = AttentionBackend::kOwn; }),
                "[attention_math_forward] backend, want kMath");
  ExpectRefused(forward([&](Placed& at) {
                  at.in.positions = Input({1, 4}, {0, 1, 0, 1}, DType::kInt32);
                }),
                "documents, which attention.h alone keeps apart");
  ExpectRefused(forward([&](Placed& at) { at.p = Output({1, 4, 4, 3}); }), "probabilities is");
  ExpectRefused(forward([&](Placed& at) { at.w = {}; }), "weights is");
  ExpectRefused(forward([&](Placed& at) { at.w = at.p; }), "weights and probabilities overlap");
  ExpectRefused(forward([&](Placed& at) { at.out = Output({1, 4, 4, 7}); }), "out is");
  ExpectRefused(forward([](Placed& at) { at.mixing.eps = 0; }), "mixing.eps, want");
  ExpectRefused(forward([&](Placed& at) {
                  at.mixing.matrix = Output({4, 3});
                }),
                "mixing.matrix is $T [4, 3]");
  ExpectRefused(forward([&](Placed& at) { at.mixing.weight = Output({4}, OtherHalf()); }),
                "mixing.weight is");
  ExpectRefused(forward([](Placed& at) { at.mixing = {}; }), "weights, which are");
  ExpectRefused(backward([&](Placed& at) {
                  at.dout = Output({1, 4, 4, 7});
                }),
                "[attention_math_backward] dout is");
  ExpectRefused(backward([&](Placed& at) { at.workspace = Workspace(16); }), "workspace has");
  ExpectRefused(backward([&](Placed& at) {
                  at.mixing_gradients.matrix = Output({3, 4});
                }),
                "dmatrix is");
  ExpectRefused(backward([&](Placed& at) {
                  at.mixing = {};
                  at.w = {};
                }),
                "gradients of mixing, of none");
  const Case many = Mixed(Full({1, 1, 65, 65, 1}));
  const Placed wide = Place(many, RandomTensors(many, random));
  ExpectRefused(
      [=](Stream& s) { AttentionMathForward(s, wide.in, wide.mixing, wide.p, wide.w, wide.out); },
      "at most 64 heads");
  // The other ops have no such probabilities.
  const View lse = Output({1, 4, 4}, kF32), none = Workspace(0);
  ExpectRefused([=](Stream& s) { AttentionForward(s, good.in, good.out, lse, none); },
                "math, which has ops of its own");
  EXPECT_THROW(AttentionMathBackwardWorkspaceBytes(c.Dims(), DType::kInt32, kernel_type(), true),
               std::invalid_argument);
  const auto inputs = [&] {
    const Heads q(Output({1, 4, 4, 8}), 0, 4), k(Output({1, 4, 2, 8}), 0, 2);
    AttentionInputs in{q, k, Heads(Output({1, 4, 2, 8}), 0, 2), {}};
    in.mask = AttentionMask::kFull;
    in.backend = AttentionBackend::kMath;
    return in;
  };
  ExpectDTypesRefused("attention_math_forward", [&](Stream& s) {
    const AttentionInputs in = inputs();
    AttentionMathForward(s, in, {}, Output(c.Scores()), {}, Output(c.Q()));
  });
  ExpectDTypesRefused("attention_math_backward", [&](Stream& s) {
    const AttentionInputs in = inputs();
    const View p = Output(c.Scores()), dout = Output(c.Q());
    const Heads dq(Output({1, 4, 4, 8}), 0, 4), dk(Output({1, 4, 2, 8}), 0, 2);
    AttentionMathBackward(s, in, {}, p, {}, dout, {dq, dk, Heads(Output({1, 4, 2, 8}), 0, 2)}, {},
                          good.workspace);
  });
}

TEST_P(AttentionMathTest, BitsDoNotDependOnThreads) {
  for (const Case& c :
       {Case{2, 37, 4, 2, 20, 0.2}, Mixed(Biased(9, Up({30, 0}, Cross({2, 13, 2, 1, 20}, 40))))}) {
    Random random(9, dtype());
    Placed at = Place(c, RandomTensors(c, random));
    at.dout = Input(c.Q(), random.Vector(c.Q().NumElements()));
    std::vector<View> results = {at.out, at.p, at.w, at.dq.tensor, at.dk.tensor};
    if (c.buckets > 0) results.push_back(at.gradients.bias);
    if (c.mixes) results.push_back(*at.mixing_gradients.matrix);
    ExpectSameBits(
        [&](Stream& s) {
          AttentionMathForward(s, at.in, at.mixing, at.p, at.w, at.out);
          AttentionMathBackward(s, at.in, at.mixing, at.p, at.w, at.dout, at.gradients,
                                at.mixing_gradients, at.workspace);
        },
        results);
    Clear();
  }
}

}  // namespace
}  // namespace fsdp
