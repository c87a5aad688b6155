#include "trainer/fsdp/slot_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/everything.h"

namespace fsdp {
namespace {

using Takes = std::vector<int64_t>;

// The largest sum of n takes that follow one another.
int64_t Neighbours(const Takes& takes, int n, bool wraps) {
  int64_t most = 0;
  const auto size = std::ssize(takes);
  for (int64_t i = 0; i < (wraps ? size : size - n + 1); ++i) {
    int64_t sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += takes[(i + k) % size];
    most = std::max(most, sum);
  }
  return most;
}

// Bytes over the largest sum of neighbours, when every two takes have been looked at that are there
// together: a take's slot is free again when the n-th before it, and all before that, are over.
double Check(const Takes& takes, int n, bool wraps) {
  Takes offsets;
  const int64_t bytes = PlaceInTurn(takes, n, wraps, offsets);
  const auto size = std::ssize(takes);
  EXPECT_EQ(std::ssize(offsets), size);
  EXPECT_LE(bytes, n * *std::max_element(takes.begin(), takes.end()));
  // Two steps: each take with its slot's number, which begins anew, and what it waits for.
  const int64_t steps = wraps ? 2 : 1;
  Takes last(n, -1);  // Last take of each slot.
  int64_t over = -1;  // So far all takes up to this one.
  for (int64_t t = 0; t < steps * size; ++t) {
    const int64_t i = t % size;
    over = std::max(over, last[i % n]);
    last[i % n] = t;
    EXPECT_LE(0, offsets[i]);
    EXPECT_LE(offsets[i] + takes[i], bytes);
    EXPECT_EQ(offsets[i] % 64, 0);
    for (int64_t s = over + 1; s < t; ++s) {
      const int64_t j = s % size;
      EXPECT_TRUE(offsets[i] >= offsets[j] + takes[j] || offsets[j] >= offsets[i] + takes[i])
          << "takes " << s << " and " << t << " of " << n << " slots";
    }
  }
  return static_cast<double>(bytes) / static_cast<double>(Neighbours(takes, n, wraps));
}

TEST(SlotPlaces, TwoSlotsTakeTheLargestSumOfNeighbours) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    Takes takes(2 + random() % 9);
    for (int64_t& take : takes) take = 64 * (1 + random() % 100);
    const bool wraps = trial % 2 == 1;
    // The last and the first of an odd number of takes have one slot.
    const bool meet = wraps && takes.size() % 2 == 0;
    Takes around = takes;
    if (meet) around.push_back(takes.front());
    Check(takes, 2, wraps);
    Takes offsets;
    EXPECT_EQ(PlaceInTurn(takes, 2, wraps, offsets), Neighbours(around, 2, false));
  }
}

// Micro-batches of blocks, with a table, stages or chance in them. Where the step's end meets its
// begin there is a ring, of which three may be large, two of them neighbours wherever one looks.
TEST(SlotPlaces, MoreSlotsTakeAtMostAQuarterMore) {
  double most = 0, most_around = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    if (testing::OfAnotherPart(trial / 24, 4)) continue;  // A run takes each kind as often.
    std::mt19937 random(trial);
    Takes forward(3 + random() % 20);
    for (int64_t& take : forward) {
      const int kind = trial % 4;
      take = 64 * (kind == 0   ? 1 + random() % 100
                   : kind == 1 ? 10 + (random() % 6 == 0 ? 1000 : 0)
                   : kind == 2 ? (int64_t{1} << (random() % 12))
                               : 10 + (&take - forward.data()) / 4 * 40);
    }
    Takes takes;
    for (int m = 0; m < 1 + trial % 3; ++m) {
      takes.insert(takes.end(), forward.begin(), forward.end());
      takes.insert(takes.end(), forward.rbegin() + 1, forward.rend());
    }
    const int n = 1 + static_cast<int>(random() % forward.size());
    const bool wraps = trial % 8 >= 4;
    const double ratio = Check(takes, n, wraps);
    if (!wraps) {
      most = std::max(most, ratio);
    } else if (2 * n <= std::ssize(takes)) {  // Else each is beside each other one.
      most_around = std::max(most_around, ratio);
    }
  }
  EXPECT_LE(most, 1.25);
  EXPECT_LE(most_around, 1.5);
}

TEST(SlotPlaces, UnitsOfOneSizeTakeAsManyTimesThat) {
  for (int n = 1; n < 5; ++n) EXPECT_EQ(Check(Takes(7, 640), n, true), 1);
}

// RegNetY's blocks: two 1 x 1 convolutions, a 3 x 3 one in groups of 1010, squeeze and excitation
// to a quarter of what comes in, and a shortcut where the width changes.
TEST(SlotPlaces, RegNet9BTakesItsLargestBlockOnce) {
  Takes blocks;
  const std::vector<std::pair<int, int64_t>> stages{{2, 2020}, {7, 4040}, {17, 11110}, {1, 28280}};
  int64_t from = 32;
  for (const auto& [depth, width] : stages) {
    for (int i = 0; i < depth; ++i, from = width) {
      const int64_t squeezed = from / 4, shortcut = from == width ? 0 : from * width;
      const int64_t elements =
          from * width + 9 * 1010 * width + width * width + 2 * width * squeezed + shortcut;
      blocks.push_back((4 * elements + 63) / 64 * 64);
    }
  }
  Takes takes = blocks, offsets;
  takes.insert(takes.end(), blocks.rbegin() + 1, blocks.rend());
  EXPECT_NEAR(2.0 * static_cast<double>(blocks.back()) / 4e9, 3.69, 0.01);
  EXPECT_NEAR(static_cast<double>(PlaceInTurn(takes, 2, false, offsets)) / 4e9, 2.25, 0.01);
}

// Forward fetches from host memory, backward gathers a secondary copy. Frozen units begin a step
// without a wait for the one before, on either stream.
TEST(SlotPlaces, TwoStreamsWithFrozenUnitsHaveSlotsOfOneSize) {
  const Layout layout = MakeLayout({{"embed", false, {{"wte", Shape{101, 7}}}},
                                    {"h.0", true, {{"h.0.w", Shape{7, 64}}}},
                                    {"h.1", true, {{"h.1.w", Shape{7, 128}}}},
                                    {"h.2", true, {{"h.2.w", Shape{7, 256}}}}},
                                   {}, 4);
  const auto bytes = [&](bool fetches, bool frozen) {
    ScheduleOptions o;
    o.sharding_strategy = Strategy::kFullShard;
    o.shards = 4;
    o.units.resize(layout.units.size());
    for (const int unit : layout.unit_of_segment) o.segments.push_back({.unit = unit});
    o.units[1].trains = !frozen;
    o.secondary = fetches ? 2 : 1;
    for (const int unit : {1, 2, 3}) {
      o.units[unit].fetched = fetches;
      o.units[unit].on_host = fetches && unit > 1;
    }
    return PlacesOfGathers(MakeSchedule(o), layout).bytes;
  };
  const int64_t equal = 2 * layout.GatheredBytes(3);
  const int64_t neighbours = layout.GatheredBytes(2) + layout.GatheredBytes(3);
  EXPECT_EQ(bytes(false, false), neighbours);
  EXPECT_EQ(bytes(false, true), neighbours);
  EXPECT_EQ(bytes(true, false), neighbours);
  EXPECT_EQ(bytes(true, true), equal);
}

TEST(SlotPlaces, ManyTakesAreQuick) {
  Takes takes;
  for (int i = 0; i < 100'000; ++i) takes.push_back(64 * (1 + i % 1000));
  Takes offsets;
  EXPECT_LE(PlaceInTurn(takes, 4, false, offsets), 4 * 64'000);
}

}  // namespace
}  // namespace fsdp
