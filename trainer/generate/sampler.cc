#include "trainer/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

// Sets the weights of all other tokens to zero. Returns the sum of those kept.
double KeepLikeliest(const Sampling& sampling, std::vector<double>& weights) {
  std::vector<int32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  };
  size_t kept = order.size();
  if (sampling.top_k > 0) kept = std::min(kept, static_cast<size_t>(sampling.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(),
                    likelier);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += weights[order[i]];
  const double enough = sampling.top_p * total;
  double sum = 0;
  size_t end = 0;
  while (end < kept && (end == 0 || sum < enough)) sum += weights[order[end++]];
  for (size_t i = end; i < order.size(); ++i) weights[order[i]] = 0;
  return sum;
}

}  // namespace

int32_t PickToken(std::span<const float> logits, int64_t vocab, const Sampling& sampling,
                  double uniform) {
  FSDP_CHECK_LT(0, vocab);
  FSDP_CHECK_LE(static_cast<size_t>(vocab), logits.size());
  int32_t best = 0;
  double high = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < vocab; ++i) {
    if (logits[i] > high) {
      high = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  if (sampling.temperature == 0 || !std::isfinite(high)) return best;
  std::vector<double> weights(static_cast<size_t>(vocab));
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    weights[i] = std::isnan(logits[i]) ? 0.0 : std::exp((logits[i] - high) / sampling.temperature);
    total += weights[i];
  }
  if ((sampling.top_k > 0 && sampling.top_k < vocab) || sampling.top_p < 1) {
    total = KeepLikeliest(sampling, weights);
  }
  double left = uniform * total;
  for (int64_t i = 0; i < vocab; ++i) {
    if (weights[i] == 0) continue;
    left -= weights[i];
    if (left <= 0) return static_cast<int32_t>(i);
  }
  return best;  // Rounding alone brings us here.
}

std::vector<int32_t> Sample(
    const SampleOptions& options, std::vector<int32_t> prompt,
    const std::function<std::span<const float>(std::span<const int32_t>)>& logits) {
  FSDP_CHECK(!prompt.empty());
  const RandomStream random(options.seed, "sample", options.step);
  std::vector<int32_t> tokens = std::move(prompt);
  const size_t start = tokens.size();
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    const size_t seen = std::min<size_t>(tokens.size(), options.context);
    const std::span<const float> next = logits(std::span(tokens).last(seen));
    tokens.push_back(PickToken(next, options.vocab, options.sampling, random.Uniform(i)));
    if (tokens.back() == options.end) break;
  }
  return {tokens.begin() + static_cast<int64_t>(start), tokens.end()};
}

}  // namespace fsdp
