#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/expert_backends.h"
#include "trainer/runtime/kernel.h"

namespace fsdp {
namespace {

// A warp has a token. Lane l holds the values of the experts l, l + 32, ..., kEach of them; those
// from n on are neutral.
constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr float kLeastSum = 1e-20f;

struct Router {
  int n, k;
  bool sigmoid, normalize;
  int groups, groups_kept;
  float scale;
};

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
// The token of this warp.
__device__ inline int64_t Token() {
  return int64_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp;
}

// The samples of all tokens.
struct Samples {
  const int32_t* lengths;
  int64_t count, tokens;  // tokens: of each.

  __device__ int64_t Length(int64_t s) const {
    const int64_t length = lengths[s] < 0 ? 0 : lengths[s];
    return length < tokens ? length : tokens;
  }
};

// Calls body(i, expert) for the experts of this lane.
template <int kEach, typename Body>
__device__ inline void ForEachExpert(int n, const Body& body) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + Lane();
    if (e < n) body(i, e);
  }
}

template <int kEach>
__device__ inline float SumOf(const float (&values)[kEach]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += values[i];
  return WarpSum(sum);
}

// The value of one expert, for all lanes. A choice among the lane's own values would become an
// index into memory.
template <int kEach>
__device__ inline float ValueAt(const float (&values)[kEach], int expert) {
  float value = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float there = __shfl_sync(kAllLanes, values[i], expert % kWarp);
    if (expert / kWarp == i) value = there;
  }
  return value;
}

// Returns log sum exp. p of experts that there are not is 0.
template <int kEach>
__device__ inline float Softmax(const float* logits, int n, float (&p)[kEach]) {
  float most = __uint_as_float(0xff800000u);
  ForEachExpert<kEach>(n, [&](int, int e) { most = fmaxf(most, logits[e]); });
  most = WarpMax(most);
#pragma unroll
  for (int i = 0; i < kEach; ++i) p[i] = 0;
  ForEachExpert<kEach>(n, [&](int i, int e) { p[i] = expf(logits[e] - most); });
  const float sum = SumOf(p);
#pragma unroll
  for (int i = 0; i < kEach; ++i) p[i] /= sum;
  return most + logf(sum);
}

template <int kEach>
__device__ inline void Scores(const Router& router, const float* logits, float (&p)[kEach]) {
  if (!router.sigmoid) {
    Softmax(logits, router.n, p);
    return;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) p[i] = 0;
  ForEachExpert<kEach>(router.n, [&](int i, int e) {
    const float exponential = expf(-fabsf(logits[e])), r = 1.0f / (1.0f + exponential);
    p[i] = logits[e] < 0.0f ? exponential * r : r;
  });
}

// Orders values, a NaN below all, and of equal ones the lower index first. 0 is below all keys.
using Key = unsigned long long;
__device__ inline Key KeyOf(float value, int index) {
  const auto bits = static_cast<int>(__float_as_uint(value + 0.0f));  // -0 is 0.
  uint32_t order = static_cast<uint32_t>(bits >= 0 ? bits : bits ^ 0x7fffffff) ^ 0x80000000u;
  if (value != value) order = 1;
  return Key{order} << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}
__device__ inline int IndexOf(Key key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}

// The best key of all lanes, which is then closed.
template <int kEach>
__device__ inline Key TakeBest(Key (&keys)[kEach]) {
  Key best = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) best = keys[i] > best ? keys[i] : best;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Key other = __shfl_xor_sync(kAllLanes, best, step);
    best = other > best ? other : best;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = keys[i] == best ? 0 : keys[i];
  return best;
}

// The keys of the experts of the groups that are kept; of others 0.
template <int kEach>
__device__ inline void KeepGroups(const Router& router, const float (&value)[kEach],
                                  Key (&keys)[kEach]) {
  const int size = router.n / router.groups;
  Key of_groups[kEach], in_group[kEach];
  bool kept[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) of_groups[i] = 0, kept[i] = false;
  for (int g = 0; g < router.groups; ++g) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * kWarp + Lane();
      in_group[i] = e / size == g ? keys[i] : 0;
    }
    const int first = IndexOf(TakeBest(in_group)), second = IndexOf(TakeBest(in_group));
    const float sum = ValueAt(value, first) + ValueAt(value, second);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * kWarp + Lane() == g) of_groups[i] = KeyOf(sum, g);
    }
  }
  for (int j = 0; j < router.groups_kept; ++j) {
    const int group = IndexOf(TakeBest(of_groups));
#pragma unroll
    for (int i = 0; i < kEach; ++i) kept[i] = kept[i] || (i * kWarp + Lane()) / size == group;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = kept[i] ? keys[i] : 0;
}

template <int kEach>
__global__ void Choose(const float* logits, const float* bias, Samples samples, Router router,
                       int64_t tokens, int32_t* choices) {
  const int64_t t = Token();
  if (t >= tokens) return;
  int32_t* const to = choices + t * router.k;
  if (t % samples.tokens >= samples.Length(t / samples.tokens)) {
    for (int j = Lane(); j < router.k; j += kWarp) to[j] = -1;
    return;
  }
  float p[kEach];
  Key keys[kEach];
  Scores(router, logits + t * router.n, p);
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = 0;
  ForEachExpert<kEach>(router.n, [&](int i, int e) {
    if (bias != nullptr) p[i] += bias[e];
    keys[i] = KeyOf(p[i], e);
  });
  if (router.groups > 1) KeepGroups(router, p, keys);
  for (int j = 0; j < router.k; ++j) {
    const Key best = TakeBest(keys);
    if (Lane() == 0) to[j] = IndexOf(best);
  }
}

// The divisor of a token's scores: with `normalize` their sum.
template <int kEach>
__device__ inline float DivisorOf(const Router& router, const float (&p)[kEach],
                                  const int32_t* choice) {
  if (!router.normalize) return 1;
  float sum = 0;
  for (int j = 0; j < router.k; ++j) sum += ValueAt(p, choice[j]);
  return router.sigmoid ? sum + kLeastSum : sum;
}

template <int kEach>
__global__ void Weigh(const float* logits, const int32_t* choices, const int32_t* places,
                      Router router, int64_t tokens, float* weights) {
  const int64_t t = Token();
  if (t >= tokens) return;
  const int32_t* const choice = choices + t * router.k;
  if (choice[0] < 0) return;
  float p[kEach];
  Scores(router, logits + t * router.n, p);
  const float divisor = DivisorOf(router, p, choice);
  for (int j = 0; j < router.k; ++j) {
    const float weight = ValueAt(p, choice[j]) / divisor * router.scale;
    if (Lane() == 0) weights[places[t * router.k + j]] = weight;
  }
}

// A warp a row: the sum in order, which all lanes compute.
__global__ void SumRows(const float* weights, int64_t rows, int64_t length, float* sums) {
  const int64_t row = Token();
  if (row >= rows) return;
  double sum = 0;
  for (int64_t first = 0; first < length; first += kWarp) {
    const float own = first + Lane() < length ? weights[row * length + first + Lane()] : 0;
    for (int i = 0; i < kWarp; ++i) sum += __shfl_sync(kAllLanes, own, i);
  }
  if (Lane() == 0) sums[row] = static_cast<float>(sum);
}

// A block a sample. Its warps have every kTallyWarps-th token, and are added up in order.
constexpr int kTallyWarps = 16, kTallyThreads = kTallyWarps * kWarp;

template <int kEach>
__global__ void __launch_bounds__(kTallyThreads)
    TallySample(const float* logits, const int32_t* choices, Samples samples, const float* shares,
                Router router, float* sample_shares, float* sample_losses) {
  constexpr int kMost = kEach * kWarp;
  __shared__ double mean[kMost], of_warps[kTallyWarps], z_sum;
  __shared__ int counts[kMost];
  const int64_t s = blockIdx.x;
  const int64_t length = samples.Length(s), warp = threadIdx.x / kWarp;
  double p_sum[kEach] = {}, z = 0;
  int count[kEach] = {};
  for (int64_t i = warp; i < length; i += kTallyWarps) {
    const int64_t t = s * samples.tokens + i;
    float p[kEach];
    const double lse = Softmax(logits + t * router.n, router.n, p);
    z += lse * lse;
    double sum = 1;
    if (router.sigmoid) {
      Scores(router, logits + t * router.n, p);
      sum = 0;
#pragma unroll
      for (int e = 0; e < kEach; ++e) sum += p[e];
      sum = WarpSum(sum);
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) p_sum[e] += p[e] / sum;
    for (int j = 0; j < router.k; ++j) {
      const int choice = choices[t * router.k + j];
#pragma unroll
      for (int e = 0; e < kEach; ++e) count[e] += choice == e * kWarp + Lane();
    }
  }
  for (int64_t w = 0; w < kTallyWarps; ++w) {
    if (w == warp) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int at = e * kWarp + Lane();
        mean[at] = (w == 0 ? 0 : mean[at]) + p_sum[e];
        counts[at] = (w == 0 ? 0 : counts[at]) + count[e];
      }
      if (Lane() == 0) z_sum = (w == 0 ? 0 : z_sum) + z;
    }
    __syncthreads();
  }
  const double per_token = length > 0 ? 1.0 / static_cast<double>(length) : 0;
  double aux = 0;
  for (int e = static_cast<int>(threadIdx.x); e < router.n; e += kTallyThreads) {
    const auto share = static_cast<float>(counts[e] * per_token);
    sample_shares[s * router.n + e] = share;
    aux += (shares == nullptr ? share : shares[e]) * mean[e] * per_token;
  }
  aux = BlockSum(aux, of_warps);
  if (threadIdx.x > 0) return;
  sample_losses[2 * s] = static_cast<float>(router.n * aux);
  sample_losses[2 * s + 1] = static_cast<float>(z_sum * per_token);
}

// A thread for each element of the tally: samples in order.
__global__ void TallyAll(const float* sample_weights, Samples samples, int n,
                         const float* sample_shares, const float* sample_losses, float* tally) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= 2 * n + 3) return;
  double total = 0;
  for (int64_t s = 0; s < samples.count; ++s) {
    const double length = static_cast<double>(samples.Length(s)), w = sample_weights[s];
    if (i < n) {
      total += rint(sample_shares[s * n + i] * length);
    } else if (w != 0 && length > 0) {
      const double of_sample = i < 2 * n    ? sample_shares[s * n + i - n]
                               : i == 2 * n ? 1
                                            : sample_losses[2 * s + i - 2 * n - 1];
      total += w * of_sample;
    }
  }
  tally[i] += static_cast<float>(total);
}

struct Balance {
  double aux, z;
  const float* loss_scale;
  const float* shares;
  bool by_sample;
};

// Adds the gradient of the weights to that of the scores, d.
template <int kEach>
__device__ inline void AddWeightGradients(const Router& router, const float (&p)[kEach],
                                          const int32_t* choice, const int32_t* place,
                                          const float* row_gradients, float (&d)[kEach]) {
  const float divisor = DivisorOf(router, p, choice);
  float mean = 0;  // The gradients by weight.
  for (int j = 0; router.normalize && j < router.k; ++j) {
    mean += row_gradients[place[j]] * (ValueAt(p, choice[j]) / divisor);
  }
  for (int j = 0; j < router.k; ++j) {
    const float of_score = router.scale * (row_gradients[place[j]] - mean) / divisor;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (choice[j] == i * kWarp + Lane()) d[i] += of_score;
    }
  }
}

// Adds the gradient of factor sum_e f_e p_e (sigmoid: p_e / sum p).
template <int kEach>
__device__ inline void AddShareGradients(const Router& router, const float (&p)[kEach],
                                         const float* f, float factor, float (&d)[kEach]) {
  float sum = 1, mean = 0;
  if (router.sigmoid) {
    sum = SumOf(p);
    ForEachExpert<kEach>(router.n, [&](int i, int e) { mean += f[e] * (p[i] / sum); });
    mean = WarpSum(mean);
  }
  ForEachExpert<kEach>(router.n, [&](int i, int e) { d[i] += factor * (f[e] - mean) / sum; });
}

template <int kEach>
__global__ void Backward(const float* logits, const int32_t* choices, const int32_t* places,
                         const float* row_gradients, Samples samples, const float* sample_weights,
                         Balance balance, Router router, int64_t tokens, float* dlogits) {
  const int64_t t = Token(), s = t / samples.tokens;
  if (t >= tokens) return;
  const float* const logit = logits + t * router.n;
  const int32_t* const choice = choices + t * router.k;
  float p[kEach], d[kEach] = {};
  if (choice[0] >= 0) {
    Scores(router, logit, p);
    AddWeightGradients(router, p, choice, places + t * router.k, row_gradients, d);
    const double w = sample_weights[s];
    const double scale = balance.loss_scale == nullptr ? 1 : *balance.loss_scale;
    const double of_token = scale * w / static_cast<double>(samples.Length(s));
    if (balance.aux != 0 && w != 0) {
      const float* const f = balance.shares + (balance.by_sample ? s * router.n : 0);
      AddShareGradients(router, p, f, static_cast<float>(of_token * balance.aux * router.n), d);
    }
    float dot = 0;
    if (!router.sigmoid) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) dot += d[i] * p[i];
      dot = WarpSum(dot);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      d[i] = router.sigmoid ? d[i] * (p[i] * (1 - p[i])) : p[i] * (d[i] - dot);
    }
    if (balance.z != 0 && w != 0) {
      const float lse = Softmax(logit, router.n, p);
      const float factor = static_cast<float>(2 * of_token * balance.z) * lse;
#pragma unroll
      for (int i = 0; i < kEach; ++i) d[i] += factor * p[i];
    }
  }
  ForEachExpert<kEach>(router.n, [&](int i, int e) { dlogits[t * router.n + e] = d[i]; });
}

Router RouterOf(const ConstView& logits, const RouterOptions& options) {
  return {.n = static_cast<int>(logits.shape[1]),
          .k = static_cast<int>(options.experts_per_token),
          .sigmoid = options.scores == RouterScores::kSigmoid,
          .normalize = options.normalize,
          .groups = static_cast<int>(options.groups),
          .groups_kept = static_cast<int>(options.groups_kept),
          .scale = static_cast<float>(options.scale)};
}

Samples SamplesOf(const ConstView& lengths, const ConstView& logits) {
  const int64_t count = lengths.NumElements();
  return {lengths.As<int32_t>(), count, count == 0 ? 1 : logits.shape[0] / count};
}

dim3 GridOfTokens(int64_t tokens) { return dim3(static_cast<unsigned>(CeilDiv(tokens, kWarps))); }

// Calls f(an integral constant kEach) for so many experts.
template <typename Function>
void ForExperts(int64_t n, const Function& f) {
  if (n <= 4 * kWarp) return f(std::integral_constant<int, 4>());
  f(std::integral_constant<int, kMaxExperts / kWarp>());
}

}  // namespace

void ChooseExpertsCuda(CudaStreamHandle stream, const ConstView& logits,
                       const std::optional<ConstView>& bias, const ConstView& lengths,
                       const RouterOptions& options, const View& choices) {
  const int64_t tokens = logits.shape[0];
  ForExperts(logits.shape[1], [&](auto each) {
    Launch<Choose<decltype(each)::value>>(stream, GridOfTokens(tokens), dim3(kThreads), 0,
                                          logits.As<float>(), DataOrNull<float>(bias),
                                          SamplesOf(lengths, logits), RouterOf(logits, options),
                                          tokens, choices.As<int32_t>());
  });
}

void RouterWeightsCuda(CudaStreamHandle stream, const ConstView& logits, const ConstView& choices,
                       const ConstView& places, const RouterOptions& options, const View& weights) {
  const int64_t tokens = logits.shape[0];
  ForExperts(logits.shape[1], [&](auto each) {
    Launch<Weigh<decltype(each)::value>>(
        stream, GridOfTokens(tokens), dim3(kThreads), 0, logits.As<float>(), choices.As<int32_t>(),
        places.As<int32_t>(), RouterOf(logits, options), tokens, weights.As<float>());
  });
}

void SampleWeightsCuda(CudaStreamHandle stream, const ConstView& weights, const View& sums) {
  const int64_t rows = weights.shape[0];
  Launch<SumRows>(stream, GridOfTokens(rows), dim3(kThreads), 0, weights.As<float>(), rows,
                  weights.shape[1], sums.As<float>());
}

void TallyRoutingCuda(CudaStreamHandle stream, const ConstView& logits, const ConstView& choices,
                      const ConstView& lengths, const ConstView& sample_weights,
                      const std::optional<ConstView>& shares, const RouterOptions& options,
                      const View& sample_shares, const View& sample_losses, const View& tally) {
  const Samples samples = SamplesOf(lengths, logits);
  const Router router = RouterOf(logits, options);
  if (samples.count == 0) return;
  ForExperts(router.n, [&](auto each) {
    Launch<TallySample<decltype(each)::value>>(
        stream, dim3(static_cast<unsigned>(samples.count)), dim3(kTallyThreads), 0,
        logits.As<float>(), choices.As<int32_t>(), samples, DataOrNull<float>(shares), router,
        sample_shares.As<float>(), sample_losses.As<float>());
  });
  const auto blocks = static_cast<unsigned>(CeilDiv(2 * router.n + 3, kThreads));
  Launch<TallyAll>(stream, dim3(blocks), dim3(kThreads), 0, sample_weights.As<float>(), samples,
                   router.n, sample_shares.As<float>(), sample_losses.As<float>(),
                   tally.As<float>());
}

void RouterBackwardCuda(CudaStreamHandle stream, const ConstView& logits, const ConstView& choices,
                        const ConstView& places, const ConstView& row_gradients,
                        const ConstView& lengths, const ConstView& sample_weights,
                        const ConstView& shares, const RouterBalance& balance,
                        const std::optional<ConstView>& loss_scale, const RouterOptions& options,
                        const View& dlogits) {
  const int64_t tokens = logits.shape[0];
  const Balance of{balance.aux, balance.z, DataOrNull<float>(loss_scale), shares.As<float>(),
                   shares.shape.rank() == 2};
  ForExperts(logits.shape[1], [&](auto each) {
    Launch<Backward<decltype(each)::value>>(
        stream, GridOfTokens(tokens), dim3(kThreads), 0, logits.As<float>(), choices.As<int32_t>(),
        places.As<int32_t>(), row_gradients.As<float>(), SamplesOf(lengths, logits),
        sample_weights.As<float>(), of, RouterOf(logits, options), tokens, dlogits.As<float>());
  });
}

}  // namespace fsdp
