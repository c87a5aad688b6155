#include "trainer/ops/router.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/sigmoid_element.h"
#include "trainer/ops/expert_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 16;  // Tokens.
constexpr float kLeastSum = 1e-20f;
constexpr double kScoreFlops = 20;  // One score's.

using Experts = float[kMaxExperts];

// The softmax. Returns log sum exp.
float Softmax(const float* logits, int64_t n, float* p) {
  float most = logits[0], sum = 0;
  for (int64_t e = 1; e < n; ++e) most = std::max(most, logits[e]);
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) p[e] = Exp(logits[e] - most);
  for (int64_t e = 0; e < n; ++e) sum += p[e];
  for (int64_t e = 0; e < n; ++e) p[e] /= sum;
  return most + std::log(sum);
}

void Scores(const RouterOptions& options, const float* logits, int64_t n, float* p) {
  if (options.scores == RouterScores::kSoftmax) {
    Softmax(logits, n, p);
    return;
  }
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) p[e] = SigmoidAt(logits[e]).s;
}

// A NaN is below all numbers.
bool Better(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// The k best of the open ones among n, in descending order; of equal ones the lower. They are
// closed.
void TakeBest(const float* value, bool* open, int64_t n, int64_t k, int32_t* best) {
  for (int64_t j = 0; j < k; ++j) {
    int64_t at = -1;
    for (int64_t e = 0; e < n; ++e) {
      if (open[e] && (at < 0 || Better(value[e], value[at]))) at = e;
    }
    open[at] = false;
    best[j] = static_cast<int32_t>(at);
  }
}

// Opens the experts of the best groups.
void OpenGroups(const RouterOptions& options, const float* value, int64_t n, bool* open) {
  std::fill_n(open, n, options.groups == 1);
  if (options.groups == 1) return;
  const int64_t size = n / options.groups;
  Experts of_groups;
  int32_t kept[kMaxExperts], two[2];
  bool all[kMaxExperts];
  for (int64_t g = 0; g < options.groups; ++g) {
    const float* const group = value + g * size;
    std::fill_n(all, size, true);
    TakeBest(group, all, size, 2, two);
    of_groups[g] = group[two[0]] + group[two[1]];
  }
  std::fill_n(all, options.groups, true);
  TakeBest(of_groups, all, options.groups, options.groups_kept, kept);
  for (int64_t g = 0; g < options.groups_kept; ++g) std::fill_n(open + kept[g] * size, size, true);
}

// The samples of T tokens, and the real ones among these.
struct Samples {
  const int32_t* lengths;
  int64_t count, tokens;  // tokens: of each sample.

  Samples(const ConstView& of, const ConstView& logits)
      : lengths(of.As<int32_t>()),
        count(of.NumElements()),
        tokens(count == 0 ? 0 : logits.shape[0] / count) {}
  int64_t Length(int64_t s) const { return std::clamp<int64_t>(lengths[s], 0, tokens); }
  bool IsReal(int64_t t) const { return t % tokens < Length(t / tokens); }
};

void ChooseExpertsCpu(ThreadPool& pool, const ConstView& logits,
                      const std::optional<ConstView>& bias, const ConstView& lengths,
                      const RouterOptions& options, const View& choices) {
  const int64_t n = logits.shape[1], k = options.experts_per_token;
  const Samples samples(lengths, logits);
  const auto* const offset = DataOrNull<float>(bias);
  pool.ParallelFor(logits.shape[0], kGrain, [&](int64_t begin, int64_t end) {
    Experts p;
    bool open[kMaxExperts];
    for (int64_t t = begin; t < end; ++t) {
      int32_t* const to = choices.As<int32_t>() + t * k;
      if (!samples.IsReal(t)) {
        std::fill_n(to, k, -1);
        continue;
      }
      Scores(options, logits.As<float>() + t * n, n, p);
      for (int64_t e = 0; offset != nullptr && e < n; ++e) p[e] += offset[e];
      OpenGroups(options, p, n, open);
      TakeBest(p, open, n, k, to);
    }
  });
}

// The divisor of a token's scores: with `normalize` their sum.
float DivisorOf(const RouterOptions& options, const float* p, const int32_t* choice) {
  if (!options.normalize) return 1;
  float sum = 0;
  for (int64_t j = 0; j < options.experts_per_token; ++j) sum += p[choice[j]];
  return options.scores == RouterScores::kSigmoid ? sum + kLeastSum : sum;
}

void RouterWeightsCpu(ThreadPool& pool, const ConstView& logits, const ConstView& choices,
                      const ConstView& places, const RouterOptions& options, const View& weights) {
  const int64_t n = logits.shape[1], k = options.experts_per_token;
  const auto scale = static_cast<float>(options.scale);
  pool.ParallelFor(logits.shape[0], kGrain, [&](int64_t begin, int64_t end) {
    Experts p;
    for (int64_t t = begin; t < end; ++t) {
      const int32_t* const choice = choices.As<int32_t>() + t * k;
      const int32_t* const place = places.As<int32_t>() + t * k;
      if (choice[0] < 0) continue;
      Scores(options, logits.As<float>() + t * n, n, p);
      const float divisor = DivisorOf(options, p, choice);
      for (int64_t j = 0; j < k; ++j) {
        weights.As<float>()[place[j]] = p[choice[j]] / divisor * scale;
      }
    }
  });
}

void SampleWeightsCpu(ThreadPool& pool, const ConstView& weights, const View& sums) {
  const int64_t length = weights.shape[1];
  pool.ParallelFor(weights.shape[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      double sum = 0;
      for (int64_t i = 0; i < length; ++i) sum += weights.As<float>()[s * length + i];
      sums.As<float>()[s] = static_cast<float>(sum);
    }
  });
}

// The sums of one sample's tokens.
struct SampleSums {
  std::vector<double> counts, p;
  double z = 0;

  explicit SampleSums(int64_t n) : counts(n), p(n) {}

  void AddToken(const RouterOptions& options, const float* logits, const int32_t* choice) {
    const auto n = static_cast<int64_t>(p.size());
    Experts scores;
    const double lse = Softmax(logits, n, scores);
    z += lse * lse;
    double sum = 1;
    if (options.scores == RouterScores::kSigmoid) {
      Scores(options, logits, n, scores);
      sum = 0;
      for (int64_t e = 0; e < n; ++e) sum += scores[e];
    }
    for (int64_t e = 0; e < n; ++e) p[e] += scores[e] / sum;
    for (int64_t j = 0; j < options.experts_per_token; ++j) {
      if (choice[j] >= 0) counts[choice[j]] += 1;
    }
  }
};

void TallyRoutingCpu(ThreadPool& pool, const ConstView& logits, const ConstView& choices,
                     const ConstView& lengths, const ConstView& sample_weights,
                     const std::optional<ConstView>& shares, const RouterOptions& options,
                     const View& sample_shares, const View& sample_losses, const View& tally) {
  const int64_t n = logits.shape[1], k = options.experts_per_token;
  const Samples samples(lengths, logits);
  std::vector<SampleSums> of_samples(samples.count, SampleSums(n));
  pool.ParallelFor(samples.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      SampleSums& sums = of_samples[s];
      const int64_t length = samples.Length(s), first = s * samples.tokens;
      for (int64_t t = first; t < first + length; ++t) {
        sums.AddToken(options, logits.As<float>() + t * n, choices.As<int32_t>() + t * k);
      }
      const double per_token = length > 0 ? 1.0 / static_cast<double>(length) : 0;
      float* const share = sample_shares.As<float>() + s * n;
      const auto* const f = shares ? shares->As<float>() : share;
      double aux = 0;
      for (int64_t e = 0; e < n; ++e) {
        share[e] = static_cast<float>(sums.counts[e] * per_token);
        aux += f[e] * sums.p[e] * per_token;
      }
      float* const losses = sample_losses.As<float>() + 2 * s;
      losses[0] = static_cast<float>(static_cast<double>(n) * aux);
      losses[1] = static_cast<float>(sums.z * per_token);
    }
  });
  std::vector<double> totals(2 * n + 3);
  for (int64_t s = 0; s < samples.count; ++s) {
    for (int64_t e = 0; e < n; ++e) totals[e] += of_samples[s].counts[e];
    const double w = sample_weights.As<float>()[s];
    if (w == 0 || samples.Length(s) == 0) continue;
    for (int64_t e = 0; e < n; ++e) totals[n + e] += w * sample_shares.As<float>()[s * n + e];
    totals[2 * n] += w;
    for (int i = 0; i < 2; ++i) totals[2 * n + 1 + i] += w * sample_losses.As<float>()[2 * s + i];
  }
  for (int64_t i = 0; i < 2 * n + 3; ++i) tally.As<float>()[i] += static_cast<float>(totals[i]);
}

// Adds the gradient of the weights to that of the scores, dp.
void AddWeightGradients(const RouterOptions& options, const float* p, const int32_t* choice,
                        const int32_t* place, const float* row_gradients, float* dp) {
  const int64_t k = options.experts_per_token;
  const auto scale = static_cast<float>(options.scale);
  const float divisor = DivisorOf(options, p, choice);
  float mean = 0;  // The gradients by weight.
  for (int64_t j = 0; options.normalize && j < k; ++j) {
    mean += row_gradients[place[j]] * (p[choice[j]] / divisor);
  }
  for (int64_t j = 0; j < k; ++j) {
    dp[choice[j]] += scale * (row_gradients[place[j]] - mean) / divisor;
  }
}

// Adds the gradient of factor sum_e f_e p_e (sigmoid: p_e / sum p).
void AddShareGradients(const RouterOptions& options, const float* p, int64_t n, const float* f,
                       float factor, float* dp) {
  float sum = 1, mean = 0;
  if (options.scores == RouterScores::kSigmoid) {
    sum = 0;
    for (int64_t e = 0; e < n; ++e) sum += p[e];
    for (int64_t e = 0; e < n; ++e) mean += f[e] * (p[e] / sum);
  }
  for (int64_t e = 0; e < n; ++e) dp[e] += factor * (f[e] - mean) / sum;
}

// d: the gradient of the scores becomes that of the logits.
void ThroughScores(const RouterOptions& options, const float* p, int64_t n, float* d) {
  float dot = 0;
  if (options.scores == RouterScores::kSoftmax) {
    for (int64_t e = 0; e < n; ++e) dot += d[e] * p[e];
    for (int64_t e = 0; e < n; ++e) d[e] = p[e] * (d[e] - dot);
  } else {
    for (int64_t e = 0; e < n; ++e) d[e] *= p[e] * (1 - p[e]);
  }
}

void RouterBackwardCpu(ThreadPool& pool, const ConstView& logits, const ConstView& choices,
                       const ConstView& places, const ConstView& row_gradients,
                       const ConstView& lengths, const ConstView& sample_weights,
                       const ConstView& shares, const RouterBalance& balance,
                       const std::optional<ConstView>& loss_scale, const RouterOptions& options,
                       const View& dlogits) {
  const int64_t n = logits.shape[1], k = options.experts_per_token;
  const Samples samples(lengths, logits);
  const double scale = loss_scale ? *loss_scale->As<float>() : 1;
  pool.ParallelFor(logits.shape[0], kGrain, [&](int64_t begin, int64_t end) {
    Experts p, softmax;
    for (int64_t t = begin; t < end; ++t) {
      float* const d = dlogits.As<float>() + t * n;
      const float* const logit = logits.As<float>() + t * n;
      const int32_t* const choice = choices.As<int32_t>() + t * k;
      std::fill_n(d, n, 0.0f);
      if (choice[0] < 0) continue;
      Scores(options, logit, n, p);
      AddWeightGradients(options, p, choice, places.As<int32_t>() + t * k,
                         row_gradients.As<float>(), d);
      const int64_t s = t / samples.tokens;
      const double w = sample_weights.As<float>()[s];
      const double of_token = scale * w / static_cast<double>(samples.Length(s));
      if (balance.aux != 0 && w != 0) {
        const float* const f = shares.As<float>() + (shares.shape.rank() == 2 ? s * n : 0);
        AddShareGradients(options, p, n, f,
                          static_cast<float>(of_token * balance.aux * static_cast<double>(n)), d);
      }
      ThroughScores(options, p, n, d);
      if (balance.z == 0 || w == 0) continue;
      const auto factor = static_cast<float>(2 * of_token * balance.z) * Softmax(logit, n, softmax);
      for (int64_t e = 0; e < n; ++e) d[e] += factor * softmax[e];
    }
  });
}

// Checks logits and options. Returns the number of experts.
int64_t CheckRouter(const Arguments& args, const ConstView& logits, const RouterOptions& options) {
  args.CheckRank("logits", logits, DType::kFloat32, 2);
  const int64_t n = logits.shape[1], k = options.experts_per_token;
  args.Require(n > 0 && n <= kMaxExperts, "experts, want 1 to 512");
  args.Require(k > 0 && k <= n, "experts_per_token, want 1 to the number of experts");
  args.Require(options.groups > 0 && n % options.groups == 0, "groups, want a divisor of experts");
  args.Require(options.groups == 1 || n / options.groups > 1, "groups, want two experts in each");
  args.Require(options.groups_kept > 0 && options.groups_kept <= options.groups,
               "groups_kept, want 1 to groups");
  args.Require(options.groups_kept * (n / options.groups) >= k,
               "groups_kept, want experts_per_token in the groups that are kept");
  return n;
}

void CheckSamples(const Arguments& args, const ConstView& lengths, const ConstView& logits) {
  args.CheckRank("lengths", lengths, DType::kInt32, 1);
  const int64_t samples = lengths.NumElements(), tokens = logits.shape[0];
  args.Require(samples == 0 ? tokens == 0 : tokens % samples == 0,
               "logits, want equally many tokens in each sample");
}

void CheckChoices(const Arguments& args, const char* name, const ConstView& choices,
                  const ConstView& logits, const RouterOptions& options) {
  args.Check(name, choices, DType::kInt32, {logits.shape[0], options.experts_per_token});
}

void Enqueue(Stream& stream, const char* name,
             std::initializer_list<std::optional<ConstView>> reads, std::vector<Range> writes,
             double flops, double extra_bytes, int64_t launches, DeviceKernels kernels) {
  Operation operation{.name = name, .reads = {}, .writes = std::move(writes), .costs = {}};
  Cost cost{.flops = flops};
  for (const auto& read : reads) {
    if (!read) continue;
    operation.reads.push_back(*read);
    cost.bytes_read += static_cast<double>(read->bytes());
  }
  for (const Range& write : operation.writes) {
    cost.bytes_written += static_cast<double>(write.bytes);
  }
  operation.costs = {{cost, {.launches = launches, .extra_bytes = extra_bytes}}};
  operation.kernels = std::move(kernels);
  stream.Enqueue(std::move(operation));
}

}  // namespace

void ChooseExperts(Stream& stream, ConstView logits, std::optional<ConstView> bias,
                   ConstView lengths, const RouterOptions& options, View choices) {
  constexpr const char* kOp = "choose_experts";
  const Arguments args(kOp);
  const int64_t n = CheckRouter(args, logits, options);
  if (bias) args.Check("bias", *bias, DType::kFloat32, {n});
  CheckSamples(args, lengths, logits);
  CheckChoices(args, "choices", choices, logits, options);
  args.CheckDisjoint("choices", choices,
                     {{"logits", logits}, {"bias", bias}, {"lengths", lengths}});
  const double scores = static_cast<double>(logits.NumElements());
  Enqueue(stream, kOp, {logits, bias, lengths}, {choices},
          scores * (kScoreFlops + static_cast<double>(options.experts_per_token)), 0,
          choices.NumElements() > 0,
          {.cpu = OnCpu(ChooseExpertsCpu, logits, bias, lengths, options, choices),
           .cuda = OnCuda(ChooseExpertsCuda, logits, bias, lengths, options, choices)});
}

void RouterWeights(Stream& stream, ConstView logits, ConstView choices, ConstView places,
                   const RouterOptions& options, View weights) {
  constexpr const char* kOp = "router_weights";
  const Arguments args(kOp);
  CheckRouter(args, logits, options);
  CheckChoices(args, "choices", choices, logits, options);
  CheckChoices(args, "places", places, logits, options);
  args.Check("weights", weights, DType::kFloat32, {choices.NumElements()});
  args.CheckDisjoint("weights", weights,
                     {{"logits", logits}, {"choices", choices}, {"places", places}});
  Enqueue(stream, kOp, {logits, choices, places}, {weights},
          static_cast<double>(logits.NumElements()) * kScoreFlops, 0, choices.NumElements() > 0,
          {.cpu = OnCpu(RouterWeightsCpu, logits, choices, places, options, weights),
           .cuda = OnCuda(RouterWeightsCuda, logits, choices, places, options, weights)});
}

void SampleWeights(Stream& stream, ConstView weights, View sums) {
  constexpr const char* kOp = "sample_weights";
  const Arguments args(kOp);
  args.CheckRank("weights", weights, DType::kFloat32, 2);
  args.Check("sums", sums, DType::kFloat32, {weights.shape[0]});
  args.CheckDisjoint("sums", sums, "weights", weights);
  Enqueue(stream, kOp, {weights}, {sums}, static_cast<double>(weights.NumElements()), 0,
          sums.NumElements() > 0,
          {.cpu = OnCpu(SampleWeightsCpu, weights, sums),
           .cuda = OnCuda(SampleWeightsCuda, weights, sums)});
}

void TallyRouting(Stream& stream, ConstView logits, ConstView choices, ConstView lengths,
                  ConstView sample_weights, std::optional<ConstView> shares,
                  const RouterOptions& options, View sample_shares, View sample_losses,
                  View tally) {
  constexpr const char* kOp = "tally_routing";
  constexpr DType kFloat = DType::kFloat32;
  const Arguments args(kOp);
  const int64_t n = CheckRouter(args, logits, options);
  CheckChoices(args, "choices", choices, logits, options);
  CheckSamples(args, lengths, logits);
  const int64_t samples = lengths.NumElements();
  args.Check("sample_weights", sample_weights, kFloat, {samples});
  if (shares) args.Check("shares", *shares, kFloat, {n});
  args.Check("sample_shares", sample_shares, kFloat, {samples, n});
  args.Check("sample_losses", sample_losses, kFloat, {samples, 2});
  args.Check("tally", tally, kFloat, {2 * n + 3});
  const Arguments::Operand inputs[] = {{"logits", logits},
                                       {"choices", choices},
                                       {"lengths", lengths},
                                       {"sample_weights", sample_weights},
                                       {"shares", shares}};
  for (const auto& [name, result] :
       {std::pair("sample_shares", sample_shares), std::pair("sample_losses", sample_losses),
        std::pair("tally", tally)}) {
    for (const Arguments::Operand& input : inputs) args.CheckDisjoint(name, result, {input});
  }
  args.CheckDisjoint("tally", tally,
                     {{"sample_shares", sample_shares}, {"sample_losses", sample_losses}});
  args.CheckDisjoint("sample_losses", sample_losses, "sample_shares", sample_shares);
  // A second kernel adds up the samples, and reads what the first one wrote.
  Enqueue(stream, kOp, {logits, choices, lengths, sample_weights, shares},
          {sample_shares, sample_losses, tally},
          static_cast<double>(logits.NumElements()) * kScoreFlops,
          static_cast<double>(sample_shares.bytes() + sample_losses.bytes() + tally.bytes()),
          samples > 0 ? 2 : 0,
          {.cpu = OnCpu(TallyRoutingCpu, logits, choices, lengths, sample_weights, shares, options,
                        sample_shares, sample_losses, tally),
           .cuda = OnCuda(TallyRoutingCuda, logits, choices, lengths, sample_weights, shares,
                          options, sample_shares, sample_losses, tally)});
}

void RouterBackward(Stream& stream, ConstView logits, ConstView choices, ConstView places,
                    ConstView row_gradients, ConstView lengths, ConstView sample_weights,
                    ConstView shares, const RouterBalance& balance,
                    std::optional<ConstView> loss_scale, const RouterOptions& options,
                    View dlogits) {
  constexpr const char* kOp = "router_backward";
  constexpr DType kFloat = DType::kFloat32;
  const Arguments args(kOp);
  const int64_t n = CheckRouter(args, logits, options);
  CheckChoices(args, "choices", choices, logits, options);
  CheckChoices(args, "places", places, logits, options);
  CheckSamples(args, lengths, logits);
  const int64_t samples = lengths.NumElements();
  args.Check("row_gradients", row_gradients, kFloat, {choices.NumElements()});
  args.Check("sample_weights", sample_weights, kFloat, {samples});
  args.Check("shares", shares, kFloat, shares.shape.rank() == 2 ? Shape{samples, n} : Shape{n});
  if (loss_scale) args.Check("loss_scale", *loss_scale, kFloat, {1});
  args.Check("dlogits", dlogits, kFloat, logits.shape);
  args.CheckDisjoint("dlogits", dlogits,
                     {{"logits", logits},
                      {"choices", choices},
                      {"places", places},
                      {"row_gradients", row_gradients},
                      {"lengths", lengths},
                      {"sample_weights", sample_weights},
                      {"shares", shares},
                      {"loss_scale", loss_scale}});
  Enqueue(stream, kOp,
          {logits, choices, places, row_gradients, lengths, sample_weights, shares, loss_scale},
          {dlogits}, static_cast<double>(logits.NumElements()) * 2 * kScoreFlops, 0,
          logits.NumElements() > 0,
          {.cpu = OnCpu(RouterBackwardCpu, logits, choices, places, row_gradients, lengths,
                        sample_weights, shares, balance, loss_scale, options, dlogits),
           .cuda = OnCuda(RouterBackwardCuda, logits, choices, places, row_gradients, lengths,
                          sample_weights, shares, balance, loss_scale, options, dlogits)});
}

}  // namespace fsdp
