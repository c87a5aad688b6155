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

std::span<const float> SlidingWindow::OfLast() const {
  const size_t seen = std::min(tokens_.size(), static_cast<size_t>(context_));
  return logits_(std::span(tokens_).last(seen));
}

std::span<const float> SlidingWindow::Start(int64_t row, std::span<const int32_t> prompt) {
  FSDP_CHECK_EQ(row, 0);
  FSDP_CHECK(!prompt.empty());
  tokens_.assign(prompt.begin(), prompt.end());
  return OfLast();
}

std::span<const float> SlidingWindow::Next(std::span<const int32_t> tokens,
                                           std::span<const int32_t> positions) {
  FSDP_CHECK_EQ(tokens.size(), 1u);
  FSDP_CHECK_EQ(static_cast<size_t>(positions[0]), tokens_.size());
  tokens_.push_back(tokens[0]);
  return OfLast();
}

std::vector<Continuation> Generate(
    LogitsSource& source, const std::vector<std::vector<int32_t>>& prompts,
    const GenerateOptions& options,
    const std::function<void(size_t prompt, int32_t token)>& on_token) {
  std::vector<Continuation> out(prompts.size());
  // By row: the token that comes next, its position, and whether the row is done.
  std::vector<int32_t> tokens(source.rows()), positions(source.rows());
  std::vector<bool> done(source.rows(), true);
  std::vector<float> among;  // The logits of what may come out.
  const auto take = [&](size_t p, std::span<const float> logits) {
    Continuation& c = out[p];
    const auto i = static_cast<int64_t>(c.tokens.size());
    if (i == options.max_tokens) {
      done[p] = true;
      return;
    }
    const RandomStream random(options.seed, options.stream, options.first + p);
    if (!options.never.empty()) {
      among.assign(logits.begin(), logits.end());
      for (const int32_t id : options.never) among[id] = -std::numeric_limits<float>::infinity();
      logits = among;
    }
    const int32_t token = PickToken(logits, options.vocab, options.sampling, random.Uniform(i));
    if (std::find(options.eos.begin(), options.eos.end(), token) != options.eos.end()) {
      c.end = Continuation::End::kEndOfText;
      done[p] = true;
      return;
    }
    c.tokens.push_back(token);
    if (on_token) on_token(p, token);
    if (options.ends && options.ends(p, c.tokens)) {
      c.end = Continuation::End::kEndOfText;
      done[p] = true;
      return;
    }
    const auto position = static_cast<int64_t>(prompts[p].size()) + i;
    if (i + 1 == options.max_tokens) {
      done[p] = true;
    } else if (position >= source.capacity()) {
      c.end = Continuation::End::kContext;
      done[p] = true;
    } else {
      tokens[p] = token;
      positions[p] = static_cast<int32_t>(position);
    }
  };
  for (size_t p = 0; p < prompts.size(); ++p) {
    done[p] = false;
    take(p, source.Start(static_cast<int64_t>(p), prompts[p]));
  }
  while (std::find(done.begin(), done.end(), false) != done.end()) {
    const std::span<const float> logits = source.Next(tokens, positions);
    const auto vocab = static_cast<size_t>(source.vocab_size());
    for (size_t p = 0; p < prompts.size(); ++p) {
      if (!done[p]) take(p, logits.subspan(p * vocab, vocab));
    }
  }
  return out;
}

}  // namespace fsdp
