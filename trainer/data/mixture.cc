#include "trainer/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "trainer/core/philox.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

constexpr int kBits = 62;

}  // namespace

bool Mixture::CanShare(std::span<const double> weights) {
  try {
    const Mixture made(weights, 0);
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

Mixture::Mixture(std::span<const double> weights, uint64_t seed) {
  if (weights.empty()) throw std::invalid_argument("[Mixture] no weights");
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) {
      throw std::invalid_argument("[Mixture] weight " + Shortest(weight) +
                                  ", want it finite and above 0");
    }
  }
  Build(weights, 0, std::ssize(weights), seed);
}

size_t Mixture::Build(std::span<const double> weights, int64_t begin, int64_t end, uint64_t seed) {
  const size_t at = nodes_.size();
  nodes_.push_back({begin, end, 0, 0, 0});
  if (end - begin == 1) return at;
  const int64_t middle = begin + (end - begin) / 2;
  const auto sum = [&](int64_t from, int64_t to) {
    return std::accumulate(weights.begin() + from, weights.begin() + to, 0.0L);
  };
  const long double share = sum(begin, middle) / sum(begin, end);
  nodes_[at].share = static_cast<uint64_t>(std::ldexp(share, kBits));
  if (nodes_[at].share < 4 || nodes_[at].share > (uint64_t{1} << kBits) - 4) {
    throw std::invalid_argument("[Mixture] weights too far apart to share samples");
  }
  nodes_[at].phase = RandomStream(seed, "data.mixture").Below(at, uint64_t{1} << kBits);
  Build(weights, begin, middle, seed);
  const size_t right = Build(weights, middle, end, seed);
  nodes_[at].right = right;
  return at;
}

int64_t Mixture::Left(const Node& node, int64_t n) {
  const auto product = static_cast<unsigned __int128>(n) * node.share + node.phase;
  return static_cast<int64_t>(product >> kBits);
}

Mixture::Place Mixture::operator()(int64_t sample) const {
  if (sample < 0 || sample >> kBits != 0) {
    throw std::invalid_argument("[Mixture] sample " + std::to_string(sample));
  }
  size_t at = 0;
  while (nodes_[at].end - nodes_[at].begin > 1) {
    const Node& node = nodes_[at];
    const int64_t left = Left(node, sample);
    const bool goes_left = Left(node, sample + 1) > left;
    sample = goes_left ? left : sample - left;
    at = goes_left ? at + 1 : node.right;
  }
  return {nodes_[at].begin, sample};
}

std::vector<int64_t> Mixture::Counts(int64_t n) const {
  std::vector<int64_t> reaching(nodes_.size()), counts;
  reaching[0] = n;
  for (size_t at = 0; at < nodes_.size(); ++at) {  // Parents come before their children.
    const Node& node = nodes_[at];
    if (node.end - node.begin == 1) {
      counts.push_back(reaching[at]);  // Leaves come in the order of the sources.
      continue;
    }
    reaching[at + 1] = Left(node, reaching[at]);
    reaching[node.right] = reaching[at] - reaching[at + 1];
  }
  return counts;
}

int64_t Mixture::Longest(std::span<const int64_t> available, int64_t most) const {
  const auto holds = [&](int64_t n) {
    const std::vector<int64_t> counts = Counts(n);
    for (size_t k = 0; k < counts.size(); ++k) {
      if (counts[k] > available[k]) return false;
    }
    return true;
  };
  int64_t low = 0, high = std::min(most, (int64_t{1} << kBits) - 1);  // holds(low).
  if (holds(high)) return high;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace fsdp
