#include "trainer/simulate/product_waves.h"

#include <algorithm>
#include <array>
#include <limits>

namespace fsdp {
namespace {

// Sides of a tile, and its rate as a share of the largest one's: it reads more for as many FLOPs.
// Fitted to products of an H100 and a B200 at once (tools/paper/parts.py).
struct Tile {
  int64_t rows, columns;
  double share;
};
constexpr std::array<Tile, 8> kTiles = {{{128, 256, 1.0},
                                         {256, 128, 1.0},
                                         {128, 128, 0.9},
                                         {64, 256, 0.8},
                                         {256, 64, 0.8},
                                         {64, 128, 0.75},
                                         {128, 64, 0.75},
                                         {64, 64, 0.55}}};
constexpr int64_t kMostParts = 16, kFewestTerms = 256;
constexpr int64_t kEndsOfParts = 3;      // Begins and ends that a tile in parts takes.
constexpr double kTermsOfFast = 2048.0;  // Terms of whole waves as fast as a huge product.

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The work of all waves: elements of tiles on all multiprocessors, times terms that there is time
// for.
double WorkOf(const Product& p, int64_t multiprocessors, int64_t tile_terms, int64_t at_once) {
  double least = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const int64_t tiles = CeilDiv(p.m, tile.rows) * CeilDiv(p.n, tile.columns) * at_once;
    const auto wave = static_cast<double>(multiprocessors * tile.rows * tile.columns);
    for (int64_t parts = 1; parts <= kMostParts; ++parts) {
      const int64_t terms = CeilDiv(p.k, parts);
      if (parts > 1 && terms < kFewestTerms) break;
      const auto waves = static_cast<double>(CeilDiv(tiles * parts, multiprocessors));
      const int64_t ends = (parts > 1 ? kEndsOfParts : 1) * tile_terms;
      least = std::min(least, waves * wave * static_cast<double>(terms + ends) / tile.share);
    }
  }
  return least;
}

}  // namespace

double ProductRateInWaves(const Product& p, double rate, int64_t multiprocessors,
                          int64_t tile_terms, int64_t at_once) {
  const double needed = static_cast<double>(p.m) * static_cast<double>(p.n) *
                        static_cast<double>(p.k) * static_cast<double>(at_once);
  const double used = needed / WorkOf(p, multiprocessors, tile_terms, at_once);
  const double of_fast = kTermsOfFast / (kTermsOfFast + static_cast<double>(tile_terms));
  return rate * std::min(1.0, used / of_fast);
}

}  // namespace fsdp
