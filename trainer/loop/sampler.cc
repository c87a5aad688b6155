#include "trainer/loop/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/core/check.h"
#include "trainer/core/philox.h"

namespace fsdp {

int32_t PickToken(std::span<const float> logits, int64_t vocab, double temperature,
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
  if (temperature == 0 || !std::isfinite(high)) return best;
  const auto weight = [&](int64_t i) {
    return std::isnan(logits[i]) ? 0.0 : std::exp((logits[i] - high) / temperature);
  };
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i) total += weight(i);
  double left = uniform * total;
  for (int64_t i = 0; i < vocab; ++i) {
    left -= weight(i);
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
    tokens.push_back(PickToken(next, options.vocab, options.temperature, random.Uniform(i)));
  }
  return {tokens.begin() + static_cast<int64_t>(start), tokens.end()};
}

}  // namespace fsdp
