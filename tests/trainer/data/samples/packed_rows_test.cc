#include "trainer/data/samples/packed_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

// Samples of given lengths, which nobody reads.
class Lengths : public SampleSource {
 public:
  explicit Lengths(std::vector<int32_t> lengths) : lengths_(std::move(lengths)) {}

  int64_t size() const override { return std::ssize(lengths_); }
  int32_t Length(int64_t i) const override { return lengths_.at(static_cast<size_t>(i)); }
  int64_t Targets(int64_t) const override { throw std::logic_error("targets"); }
  std::string Describe() const override { return "lengths"; }
  void Read(int64_t, std::span<int32_t>, std::span<float>) const override {
    throw std::logic_error("read");
  }
  TokenPlace PlaceOf(int64_t, int64_t) const override { throw std::logic_error("place"); }

 private:
  std::vector<int32_t> lengths_;
};

// Even in [1, most].
Lengths Uniform(int64_t n, int64_t most, uint64_t seed) {
  const RandomStream random(seed, "lengths");
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < n; ++i) {
    lengths.push_back(static_cast<int32_t>(1 + random.Below(static_cast<uint64_t>(i), most)));
  }
  return Lengths(lengths);
}

using Rows = std::vector<std::vector<int32_t>>;
Rows RowsOf(const PackedRows& packed, int64_t epoch) {
  Rows rows;
  for (int64_t i = 0; i < packed.Rows(); ++i) {
    const auto row = packed.SamplesOf(epoch * packed.Rows() + i);
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

double Filled(const PackedRows& packed, int64_t seq_len) {
  return static_cast<double>(packed.Tokens()) / static_cast<double>(packed.Rows() * seq_len);
}

TEST(PackedRows, FillTheirPlaces) {
  for (const int64_t seq_len : {64, 1024, 4096, 32768}) {
    for (const uint64_t seed : {1, 2, 3}) {
      const Lengths lengths = Uniform(4096, seq_len, seed);
      for (const bool shuffle : {false, true}) {
        const PackedRows packed(lengths, seq_len, Packing::kSamples, shuffle, seed);
        const double filled = Filled(packed, seq_len);
        std::cout << "4096 lengths in [1, " << seq_len << "]: " << filled << " of the places\n";
        EXPECT_GE(filled, 0.97);
        EXPECT_LE(filled, 1);
      }
    }
  }
  // Short ones, of which some thousand are few rows, and many at once.
  EXPECT_GE(Filled(PackedRows(Uniform(200'000, 60, 1), 4096, Packing::kSamples, true, 1), 4096),
            0.99);
  EXPECT_GE(Filled(PackedRows(Uniform(50'000, 1024, 1), 1024, Packing::kSamples, true, 1), 1024),
            0.97);
}

TEST(PackedRows, EveryEpochHasEverySampleOnceAndNoRowTooMuch) {
  for (const int64_t n : {1, 2, 50, 4096, 4097, 9000}) {
    const Lengths lengths = Uniform(n, 40, static_cast<uint64_t>(n));
    for (const Packing packing : {Packing::kSamples, Packing::kNone}) {
      for (const bool shuffle : {false, true}) {
        const PackedRows packed(lengths, 40, packing, shuffle, 3);
        for (const int64_t epoch : {0, 1, 7}) {
          std::vector<int32_t> seen;
          for (const auto& row : RowsOf(packed, epoch)) {
            ASSERT_FALSE(row.empty());
            int64_t tokens = 0;
            for (const int32_t i : row) tokens += lengths.Length(i);
            ASSERT_LE(tokens, 40);
            seen.insert(seen.end(), row.begin(), row.end());
          }
          std::sort(seen.begin(), seen.end());
          std::vector<int32_t> all(static_cast<size_t>(n));
          std::iota(all.begin(), all.end(), 0);
          ASSERT_EQ(seen, all);
        }
        if (packing == Packing::kNone) {
          EXPECT_EQ(packed.Rows(), n);
        }
      }
    }
  }
}

TEST(PackedRows, AreShuffledBySeedAndEpoch) {
  const Lengths lengths = Uniform(5000, 100, 1);
  const auto rows = [&](bool shuffle, uint64_t seed, int64_t epoch) {
    return RowsOf(PackedRows(lengths, 100, Packing::kSamples, shuffle, seed), epoch);
  };
  EXPECT_EQ(rows(true, 1, 4), rows(true, 1, 4));
  EXPECT_NE(rows(true, 1, 4), rows(true, 1, 5));
  EXPECT_EQ(rows(false, 1, 4), rows(false, 2, 5));
  // Another seed puts others together, another epoch puts the same rows elsewhere.
  const auto distinct = [](const Rows& all) { return std::set(all.begin(), all.end()); };
  EXPECT_EQ(distinct(rows(true, 1, 4)), distinct(rows(true, 1, 5)));
  std::vector<std::vector<int32_t>> both;
  const auto one = distinct(rows(true, 1, 0)), two = distinct(rows(true, 2, 0));
  std::set_intersection(one.begin(), one.end(), two.begin(), two.end(), std::back_inserter(both));
  EXPECT_LT(std::ssize(both), std::ssize(one) / 20);
}

// Without shuffling the first rows are the first samples, give or take what is taken at a time, and
// no choice of lengths: an evaluation reads the first rows alone.
TEST(PackedRows, AsTheyLieTheFirstOnesAreNoChoiceOfLengths) {
  const Lengths lengths = Uniform(20'000, 1000, 5);
  const PackedRows packed(lengths, 1000, Packing::kSamples, /*shuffle=*/false, 0);
  double sum = 0;
  int64_t samples = 0;
  for (int64_t row = 0; row < 500; ++row) {
    const auto here = packed.SamplesOf(row);
    EXPECT_TRUE(std::is_sorted(here.begin(), here.end()));
    for (const int32_t i : here) {
      EXPECT_LT(i, 4096);
      sum += lengths.Length(i);
      ++samples;
    }
  }
  // The mean of 1000 such lengths is off by 9, one standard deviation.
  EXPECT_NEAR(sum / static_cast<double>(samples), 500.5, 40);
}

// By hand: of 10 places, longest first, each where it leaves the least room; rows by the places of
// their longest samples.
TEST(PackedRows, GoWhereTheyLeaveTheLeastRoom) {
  //                     0  1  2  3  4  5  6  7  8
  const Lengths lengths({3, 7, 2, 6, 1, 4, 9, 3, 5});
  const PackedRows packed(lengths, 10, Packing::kSamples, /*shuffle=*/false, 0);
  // 9: a new row A. 7: B. 6: C. 5: D. 4 (place 5): into C, full. 3 (place 0): into B, full.
  // 3 (place 7): into D, 2 left. 2: into D, full. 1: into A, full.
  EXPECT_EQ(RowsOf(packed, 0), (Rows{{0, 1}, {3, 5}, {4, 6}, {2, 7, 8}}));
}

// Frozen: a change here changes what every resumed run sees next. Worked out with Python's integers
// from the definitions in packed_rows.h, permutation.h and philox.h, by a best fit that tries all.
TEST(PackedRows, AreWhatTheyAlwaysWere) {
  const Lengths lengths = Uniform(6000, 50, 9);
  const PackedRows packed(lengths, 64, Packing::kSamples, /*shuffle=*/true, /*seed=*/1337);
  EXPECT_EQ(packed.Rows(), 2354);
  Rows got;
  for (const int64_t row : {0, 1, 2, 100000}) {
    const auto samples = packed.SamplesOf(row);
    got.emplace_back(samples.begin(), samples.end());
  }
  EXPECT_EQ(got, (Rows{{5976, 65, 3759}, {5270, 97}, {1220, 5807, 2850}, {4747, 3477}}));
}

TEST(PackedRows, RefusesWhatMakesNoSense) {
  EXPECT_THROW(PackedRows(Lengths({3, 0}), 4, Packing::kSamples, true, 0), std::invalid_argument);
  EXPECT_THROW(PackedRows(Lengths({3, 5}), 4, Packing::kNone, true, 0), std::invalid_argument);
  EXPECT_THROW(PackedRows(Lengths({}), 4, Packing::kNone, true, 0), std::invalid_argument);
  EXPECT_THROW(PackedRows(Lengths({3}), 4, Packing::kWindows, true, 0), std::invalid_argument);
  EXPECT_THROW(PackedRows(Lengths({3}), 4, Packing::kNone, true, 0).SamplesOf(-1),
               std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
