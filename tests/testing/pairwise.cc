#include "tests/testing/pairwise.h"

#include <array>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "trainer/core/philox.h"

namespace fsdp::testing {
namespace {

using Pair = std::array<int, 4>;  // Setting i has value a, setting j > i has value b.

Pair MakePair(int i, int a, int j, int b) { return i < j ? Pair{i, a, j, b} : Pair{j, b, i, a}; }

}  // namespace

std::vector<std::vector<int>> CoverPairs(const std::vector<int>& levels, uint64_t seed) {
  const RandomStream random(seed, "pairwise");
  uint64_t draws = 0;
  const auto below = [&](size_t n) { return static_cast<int>(random.Below(draws++, n)); };
  const int n = static_cast<int>(levels.size());
  std::set<Pair> missing;
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      for (int a = 0; a < levels[i]; ++a) {
        for (int b = 0; b < levels[j]; ++b) missing.insert({i, a, j, b});
      }
    }
  }
  std::vector<std::vector<int>> rows;
  while (!missing.empty()) {
    std::vector<int> best;
    int best_count = -1;
    for (int candidate = 0; candidate < 30; ++candidate) {
      std::vector<int> row(n, -1);
      const Pair& first = *std::next(missing.begin(), below(missing.size()));
      row[first[0]] = first[1];
      row[first[2]] = first[3];
      std::vector<int> order(n);
      std::iota(order.begin(), order.end(), 0);
      for (int k = n - 1; k > 0; --k) std::swap(order[k], order[below(k + 1)]);
      for (const int i : order) {
        if (row[i] >= 0) continue;
        int best_new = -1, chosen = 0;
        const int shift = below(levels[i]);  // Ties go to anybody.
        for (int v = 0; v < levels[i]; ++v) {
          const int value = (v + shift) % levels[i];
          int fresh = 0;
          for (int j = 0; j < n; ++j) {
            if (j != i && row[j] >= 0) fresh += missing.count(MakePair(i, value, j, row[j]));
          }
          if (fresh > best_new) best_new = fresh, chosen = value;
        }
        row[i] = chosen;
      }
      int count = 0;
      for (int i = 0; i < n; ++i) {
        for (int j = i + 1; j < n; ++j) count += missing.count({i, row[i], j, row[j]});
      }
      if (count > best_count) best_count = count, best = row;
    }
    for (int i = 0; i < n; ++i) {
      for (int j = i + 1; j < n; ++j) missing.erase({i, best[i], j, best[j]});
    }
    rows.push_back(best);
  }
  return rows;
}

}  // namespace fsdp::testing
