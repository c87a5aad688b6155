#include "trainer/bench/product_waves.h"

#include <algorithm>
#include <limits>

namespace fsdp {
namespace {

constexpr int64_t kShort = 128, kLong = 256;  // Sides of a tile.
constexpr int64_t kTermsOfATile = 192;        // What its begin and end take.
constexpr int64_t kMostParts = 16, kFewestTerms = 512;
constexpr int64_t kLarge = 8192;  // The product whose rate is known.

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of all waves: multiprocessors, times terms that each of them has time for.
double WorkOf(int64_t m, int64_t n, int64_t k, int64_t multiprocessors) {
  const int64_t tiles =
      std::min(CeilDiv(m, kShort) * CeilDiv(n, kLong), CeilDiv(m, kLong) * CeilDiv(n, kShort));
  double least = std::numeric_limits<double>::infinity();
  for (int64_t parts = 1; parts <= kMostParts; ++parts) {
    const int64_t terms = CeilDiv(k, parts);
    if (parts > 1 && terms < kFewestTerms) break;
    const int64_t waves = CeilDiv(tiles * parts, multiprocessors);
    least = std::min(least, static_cast<double>(waves * multiprocessors) *
                                static_cast<double>(terms + kTermsOfATile));
  }
  return least;
}

double Terms(int64_t m, int64_t n, int64_t k) {
  return static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

}  // namespace

double ProductRateInWaves(const Product& p, double rate, int64_t multiprocessors) {
  const double known =
      Terms(kLarge, kLarge, kLarge) / WorkOf(kLarge, kLarge, kLarge, multiprocessors);
  const double own = Terms(p.m, p.n, p.k) / WorkOf(p.m, p.n, p.k, multiprocessors);
  return rate * std::min(1.0, own / known);
}

}  // namespace fsdp
